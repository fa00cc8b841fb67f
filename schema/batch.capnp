@0xd3a1f0a6c3b57e21;
# The record batch: the same bytes on the wire and on disk. See docs/reference/batch-format.md.
#
# A batch is ONE segment with the root struct first (root pointer offset 0), so that its numbers lie at fixed places.
# Places in brackets count bytes from the start of the message, segment table included.

struct RecordBatch {
  # Stamped by the partition's leader when it appends; zero before that.
  baseOffset       @0  :Int64;   # [16] offset of the first record
  appendTimeMs     @1  :Int64;   # [24] when the leader appended it, ms since 1970
  durableOffset    @2  :Int64;   # [32] end of the log that was known to be on stable storage at that time
  leaderEpoch      @3  :Int32;   # [40]
  stampCrc         @4  :UInt32;  # [44] CRC-32C of bytes 16 to 43

  # Sealed by the producer.
  crc              @5  :UInt32;  # [48] CRC-32C of bytes 0 to 15, then of byte 52 to the end
  count            @6  :UInt32;  # [52] number of records, at least 1
  firstTimestampMs @7  :Int64;   # [56] timestamp of the first record
  maxTimestampMs   @8  :Int64;   # [64] greatest timestamp in the batch
  producerId       @9  :Int64;   # [72] 0: none
  firstSequence    @10 :UInt32;  # [80]
  producerEpoch    @11 :UInt16;  # [84]
  attributes       @12 :UInt16;  # [86] bit 0 transactional, bit 1 control (both reserved), bit 2 scattered
  codec            @13 :UInt8;   # [88] of body: 0 none, 1 zstd
  format           @14 :UInt8;   # [89] of body: 0 Body; others belong to other protocols
  pairCount        @15 :UInt16;  # [90] distinct (routing key, labels) pairs; 0: every record has neither
  bodyBytes        @16 :UInt32;  # [92] size of body when decompressed
  idHigh           @17 :UInt64;  # [96] id of record i = (idHigh << 64 | idLow) + i modulo 2^128, unless ids is present
  idLow            @18 :UInt64;  # [104]
  transaction      @19 :UInt64;  # [112] number of the producer's transaction; 0: none

  offsetSpan       @20 :UInt32;  # [120] number of offsets that the batch covers; more than count: it has gaps

  # Writers leave out the null pointers at the end, so that most batches have one.
  body             @21 :Data;    # what only readers need; a Body message, compressed as codec says

  # What a broker reads. Absent columns hold only defaults.
  routes           @22 :Data;    # a Routes message, pairCount pairs
  routeIndex       @23 :Data;    # UInt16 per record: which pair; absent where pairCount <= 1
  keyHashes        @24 :Data;    # UInt32 per record: murmur2 of the key
  priorities       @25 :Data;    # UInt8 per record
  delaysMs         @26 :Data;    # UInt32 per record
  ttlsMs           @27 :Data;    # UInt32 per record; 0: none
  ids              @28 :Data;    # 16 bytes per record, big-endian as in RFC 9562
  offsetDeltas     @29 :Data;    # UInt32 per record: its offset - baseOffset, ascending; absent where there are no gaps
  duesMs           @30 :Data;    # Int64 per record: not before this time, ms since 1970; 0: none, or delaysMs has a delay
}

struct Routes {
  pairs @0 :List(Pair);
}

struct Pair {
  routingKey @0 :Text;
  labels     @1 :List(Label);    # sorted by name, names distinct
}

struct Label {
  name @0 :Text;
  value :union {
    text   @1 :Text;
    int    @2 :Int64;
    float  @3 :Float64;
    bool   @4 :Bool;
  }
}

struct Body {
  # Columns in Arrow's layout: little-endian; offsets are n+1 Int32 that begin with 0; validity is a bitmap, least
  # significant bit first, absent where all are valid. One segment, root struct first, like RecordBatch.
  valueOffsets       @0  :Data;
  values             @1  :Data;
  timestampsMs       @2  :Data;  # Int64 per record; absent: all are firstTimestampMs
  keyOffsets         @3  :Data;  # absent: no record has a key
  keys               @4  :Data;
  keyValidity        @5  :Data;
  valueValidity      @6  :Data;
  headerOffsets      @7  :Data;  # into the header entries; absent: no record has headers
  headerNameOffsets  @8  :Data;
  headerNames        @9  :Data;  # UTF-8
  headerValueOffsets @10 :Data;
  headerValues       @11 :Data;
  headerValidity     @12 :Data;  # of the values
}
