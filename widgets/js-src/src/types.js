// What Python sends, as types: the Snapshot's are made from its dataclasses (snapshot-types.js).

/** @typedef {import("./snapshot-types.js").Collective} Collective */
/** @typedef {import("./snapshot-types.js").OpView} OpView */
/** @typedef {import("./snapshot-types.js").RankView} RankView */
/** @typedef {import("./snapshot-types.js").GpuView} GpuView */
/** @typedef {import("./snapshot-types.js").HostView} HostView */
/** @typedef {import("./snapshot-types.js").LinkView} LinkView */

/**
 * A frame: a Snapshot, when it was sent, and until when this page is to hold its charts.
 * @typedef {import("./snapshot-types.js").Snapshot & {sent?: number, held?: number | null}} Snapshot
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
