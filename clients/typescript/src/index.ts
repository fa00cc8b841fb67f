// The client of linn, the message broker. See README.md.

export { RecordBatch, LIMITS, type BatchHeader, type BatchLimits } from "./batch.js";
export { Client, connect, type ClientOptions, type Fetched, type FetchOptions, type TopicInfo } from "./client.js";
export { Consumer, type ConsumerOptions, type Start } from "./consumer.js";
export { LinnError, RecordsRefused, Unroutable } from "./errors.js";
export { Password, Token, type Login } from "./login.js";
export { Batch, Message, type Delivery } from "./message.js";
export type { ConnectionEvent } from "./outage.js";
export { partitionOf } from "./partitioner.js";
export type { Placement, RefusedRecords } from "./pending-batch.js";
export {
  Producer,
  type Acks,
  type BatchOptions,
  type ProducerOptions,
  type PublishOptions,
  type Receipt,
} from "./producer.js";
export type { Tls } from "./secure.js";
export type { Headers, Labels, LabelValue, RecordInput } from "./record.js";
export type { Settled, Verdict } from "./settling.js";
export type { SubscriptionKind } from "./subscription.js";
export type { Zstd } from "./zstd.js";
