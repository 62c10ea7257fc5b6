// Short names, and what the words of the page mean.

/** @type {Record<string, string>} */
export const DTYPES = {
  uint8: "u8", uint16: "u16", uint32: "u32", uint64: "u64",
  int8: "i8", int16: "i16", int32: "i32", int64: "i64",
  float16: "f16", bfloat16: "bf16", float32: "f32", float64: "f64", complex64: "c64",
};

/** @type {Record<string, string>} by the state of a rank: a sentence for those that do not explain themselves */
export const MEANINGS = {
  exchanging: "It is in a collective, and has been for less than two seconds.",
  waiting: "It has been in a collective for two seconds or longer.",
  unblocked: "The collective it waited in was aborted, so it waits no longer; its variables are kept.",
  failed: "Its last cell raised an error of its own.",
  suspended: "Its process was stopped by a signal (SIGSTOP); kill -CONT continues it.",
  silent: "It has sent nothing for four seconds: a call holds Python's GIL, the machine is very busy, or its host cannot be reached.",
  dead: "Its process has ended, and its variables are lost.",
};

/** @type {Record<string, string>} by the kind of a host */
export const MACHINES = { mac: "Mac", gpus: "machine with GPUs", machine: "machine" };

/** @type {Record<string, string>} by the verb of a button: what it does, in a sentence */
export const EFFECTS = {
  interrupt: "Raises KeyboardInterrupt in its code, as Ctrl-C does.",
  abort: "Unblocks the ranks that wait in the collective; they keep their variables.",
  heal: "Replaces each dead rank with a new process that has no variables, and re-forms the world; the other ranks keep theirs.",
};

/** Said after a click on a page whose requests wait until the kernel is free. */
export const LATE = "This front end has no control channel: it takes effect when the running cell has ended. To end the cell now, use the notebook's stop button.";
