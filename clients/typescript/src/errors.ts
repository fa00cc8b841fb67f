// Errors: one class, and a stable code that says which. The codes are those of linn, docs/reference/errors.md.

/** Codes of which the same request may succeed later, for errors that do not say so themselves. */
const RETRIABLE = new Set([
  "batch.corrupt",
  "broker.full",
  "broker.stopping",
  "connection.failed",
  "connection.lost",
  "log.closed",
  "request.timeout",
  "storage.descriptors_exhausted",
  "storage.disk_full",
  "topic.full",
]);

/** What the broker refused, or what went wrong in this client. `code` is for programs, `message` for people. */
export class LinnError extends Error {
  override readonly name = "LinnError";
  /** Whether the same request may succeed later without being changed. */
  readonly retriable: boolean;
  /** Of one `publishBatch`, the records that it is about, ascending: they are not stored, and the others are. Empty: it
   * is about all of them. */
  readonly indexes: readonly number[] = [];

  constructor(
    readonly code: string,
    text: string,
    retriable: boolean = RETRIABLE.has(code),
    options?: ErrorOptions,
  ) {
    super(text, options);
    this.retriable = retriable;
  }
}

/** What the broker refused some records of a call with. */
export class RecordsRefused extends LinnError {
  constructor(
    code: string,
    text: string,
    override readonly indexes: readonly number[],
  ) {
    super(code, text);
  }
}

/** exchange.unroutable: messages were published as mandatory, and no topic takes them. */
export class Unroutable extends RecordsRefused {
  constructor(text: string, indexes: readonly number[]) {
    super("exchange.unroutable", text, indexes);
  }
}

/** The same error for one more who has to hear of it: each rejection has a stack of its own. */
export function again(error: LinnError): LinnError {
  return new LinnError(error.code, error.message, error.retriable, { cause: error });
}

/** Bytes that are no batch in the documented layout. */
export function malformed(text: string): LinnError {
  return new LinnError("batch.malformed", text);
}

/** A message that the caller can't send. */
export function invalid(text: string): LinnError {
  return new LinnError("message.invalid", text);
}

/** Bytes that are not the protocol. */
export function protocolError(text: string, code = "protocol.malformed"): LinnError {
  return new LinnError(code, text);
}

export function connectionLost(text: string): LinnError {
  return new LinnError("connection.lost", text);
}

/** What is used, or waits, when it was closed: not to be tried again. */
export function clientClosed(text: string): LinnError {
  return new LinnError("client.closed", text);
}

/** What they hear who wait for a connection that is over because of `error`. */
export function goneBy(error: LinnError): LinnError {
  return error.code === "client.closed" ? again(error) : connectionLost(error.message);
}
