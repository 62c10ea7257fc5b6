// Made by generate_types.py from allranks_backends/views.py: change its dataclasses, and run `make js`.
// A field that is missing has its default; a missing figure is unknown, which is not zero.

/** @typedef {"planned" | "starting" | "idle" | "running" | "waiting" | "debugging" | "failed" | "unblocked" | "suspended" | "silent" | "dead"} RankState */
/** @typedef {"planned" | "starting" | "whole" | "broken" | "incomplete" | "down"} WorldState */

/**
 * One entry of a rank's ledger.
 * @typedef {object} Collective
 * @property {number} number
 * @property {string} op
 * @property {number[]} shape
 * @property {string} dtype
 * @property {number} nbytes
 * @property {number} [line]
 * @property {boolean} [shared]
 * @property {number} [peer]
 */

/**
 * What a rank did with one operation of ``mx.distributed`` since the world was first formed.
 * @typedef {object} OpView
 * @property {string} op
 * @property {number} calls
 * @property {number} nbytes
 * @property {number} smallest
 * @property {number} largest
 * @property {number} [transfer]
 * @property {number} [wait]
 */

/**
 * The GPU that a rank computes on, as its driver describes it.
 * @typedef {object} GpuView
 * @property {string} [id]
 * @property {string} [name]
 * @property {number} [load]
 * @property {number} [memory]
 * @property {number} [memory_used]
 * @property {number} [power]
 * @property {number} [temperature]
 * @property {boolean} [throttled]
 */

/**
 * One rank as last reported.
 * @typedef {object} RankView
 * @property {number} rank
 * @property {string} host
 * @property {number} [pid]
 * @property {"planned" | "starting" | "idle" | "running" | "waiting" | "debugging" | "failed" | "unblocked" | "suspended" | "silent" | "dead"} [state]
 * @property {number} [line]
 * @property {string} [source]
 * @property {boolean} [begun]
 * @property {Collective} [collective]
 * @property {number} [entered]
 * @property {number} [since]
 * @property {number} [cpu]
 * @property {number} [rss]
 * @property {number} [mlx_active]
 * @property {number} [mlx_peak]
 * @property {number} [mlx_cache]
 * @property {GpuView} [gpu]
 * @property {string} [cause]
 * @property {number} [effective]
 * @property {OpView[]} [ops]
 * @property {number} [stalled]
 * @property {number} [silent]
 * @property {boolean} [suspended]
 * @property {number} [away]
 * @property {string} [compiler]
 * @property {number} [compiling]
 * @property {boolean} [tasks]
 * @property {boolean} [in_task]
 */

/**
 * One host as last reported.
 * @typedef {object} HostView
 * @property {string} name
 * @property {string} [model]
 * @property {string} [chip]
 * @property {number} [cores]
 * @property {number} [memory]
 * @property {number} [memory_used]
 * @property {number} [load]
 * @property {string} [interface]
 * @property {number} [sent_rate]
 * @property {number} [received_rate]
 * @property {number} [swap_rate]
 * @property {boolean} [throttled]
 * @property {number} [temperature]
 */

/**
 * A connection from one rank to another, in that direction.
 * @typedef {object} Link
 * @property {number} source
 * @property {number} target
 * @property {string} kind
 * @property {string} [interface]
 */

/**
 * Traffic of a link, as its sender counted it. None means unknown, not zero.
 * @typedef {object} LinkView
 * @property {Link} link
 * @property {number} [connections]
 * @property {number} [nominal]
 * @property {number} [sent]
 * @property {number} [rate]
 * @property {number} [rtt]
 * @property {number} [retransmits]
 * @property {number} [queued]
 */

/**
 * Everything there is to show about a cluster at one moment.
 * @typedef {object} Snapshot
 * @property {string} name
 * @property {string} backend
 * @property {"planned" | "starting" | "whole" | "broken" | "incomplete" | "down"} state
 * @property {number} generation
 * @property {RankView[]} ranks
 * @property {number} [at]
 * @property {string[]} [notes]
 * @property {HostView[]} [hosts]
 * @property {LinkView[]} [links]
 * @property {number} [peak]
 * @property {string} [straggler]
 * @property {number} [straggler_rank]
 */

export {};
