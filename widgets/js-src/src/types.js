// What Python sends, as types: the dataclasses of allranks_backends/_plan.py. A field that is missing has its default;
// a missing figure is unknown, which is not zero.

/**
 * @typedef {{seq: number, op: string, shape?: number[], dtype: string, nbytes: number, line?: number}} Collective
 * @typedef {{op: string, calls: number, nbytes: number, smallest: number, largest: number, transfer?: number,
 *   wait?: number}} Op
 * @typedef {"planned" | "starting" | "idle" | "running" | "waiting" | "debugging" | "failed" | "stopped" | "dead"} RankState
 * @typedef {{rank: number, host: string, pid?: number, state?: RankState, line?: number, source?: string,
 *   collective?: Collective, since?: number, cpu?: number, rss?: number, mlx_active?: number, mlx_peak?: number,
 *   cause?: string, effective?: number, ops?: Op[]}} RankView
 * @typedef {{name: string, model?: string, chip?: string, cores?: number, memory?: number, memory_used?: number,
 *   load?: number, interface?: string, sent_rate?: number, received_rate?: number}} HostView
 * @typedef {{source: number, target: number, kind: string, interface?: string}} Link
 * @typedef {{link: Link, connections?: number, nominal?: number, sent?: number, rate?: number, rtt?: number,
 *   retransmits?: number}} LinkView
 * @typedef {{name: string, backend: string, state: string, epoch: number, ranks: RankView[], at?: number,
 *   notes?: string[], hosts?: HostView[], links?: LinkView[], peak?: number, straggler?: string,
 *   sent?: number, held?: number | null}} Snapshot
 */

/**
 * One thing that `ranks` put out alike, as Dashboard.output takes it.
 * @typedef {{cell: number, kind: string, ranks?: number[], count?: number, code?: string, stream?: string, text?: string,
 *   ename?: string, evalue?: string, traceback?: string[], data?: Record<string, string>, display_id?: string,
 *   wait?: boolean, lines?: any, said?: number, ok?: boolean, seconds?: number}} Item
 */

/**
 * The part of anywidget's model that is used.
 * @typedef {{get: (name: string) => any, on: (name: string, heard: (...args: any[]) => void) => void,
 *   off: (name: string, heard?: (...args: any[]) => void) => void,
 *   send: (content: any) => void, widget_manager?: any, model_id?: string}} Model
 */

export {};
