#include "codec.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include <capnp/message.h>

#include "control_message.h"
#include "utf8.h"

namespace linn::detail {
namespace {

using wire::Frame;

capnp::Text::Reader to_text(const std::string& text) { return {text.c_str(), text.size()}; }

/// Lets `fill` write the member of a frame; the message as it goes on a wire, in one segment if it has no more words.
template <typename Fill>
std::string frame(std::uint64_t correlation, std::uint16_t batches, const Fill& fill,
                  unsigned words_max = capnp::SUGGESTED_FIRST_SEGMENT_WORDS) {
  capnp::MallocMessageBuilder message(words_max);
  auto root = message.initRoot<Frame>();
  root.setCorrelation(correlation);
  root.setBatches(batches);
  fill(root);
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

template <typename Fill>
std::string frame(std::uint64_t correlation, const Fill& fill) {
  return frame(correlation, 0, fill);
}

template <typename List>
void write_texts(List target, const std::vector<std::string>& texts) {
  for (unsigned index = 0; index < target.size(); ++index) target.set(index, to_text(texts[index]));
}

std::uint32_t to_ms(std::chrono::milliseconds time) noexcept {
  constexpr std::int64_t most = UINT32_MAX;
  return static_cast<std::uint32_t>(std::clamp<std::int64_t>(time.count(), 0, most));
}

// --- what a broker sends ---

Welcome read(wire::Welcome::Reader source) {
  BrokerInfo info;
  info.name = read_text(source.getBroker());
  info.version = source.getVersion();
  for (const auto feature : checked_list(source.getFeatures())) info.features.push_back(read_text(feature));
  info.frame_bytes_max = source.getFrameBytesMax();
  info.batch_bytes_max = source.getBatchBytesMax();
  info.message_bytes_max = source.getMessageBytesMax();
  info.keepalive_ms = source.getKeepaliveMs();
  info.inflight_max = source.getInflightMax();
  info.subscriptions_max = source.getSubscriptionsMax();
  info.producer_id = source.getProducerId();
  info.producer_key = source.getProducerKey();
  info.cluster = read_text(source.getCluster());
  info.node = source.getNode();
  return {std::move(info), read_text(source.getUser()), read_text(source.getLogin())};
}

Challenge read(wire::Challenge::Reader source) {
  Challenge challenge{{}, read_text(source.getData())};
  for (const auto mechanism : checked_list(source.getMechanisms()))
    challenge.mechanisms.push_back(read_text(mechanism));
  return challenge;
}

Failed read(wire::Failed::Reader source) {
  return {read_text(source.getCode()), read_text(source.getText()), source.getRetriable()};
}

std::vector<IndexRange> read_ranges(capnp::List<std::uint32_t>::Reader bounds) {
  if (checked_list(bounds).size() % 2 != 0) malformed_frame("a range has no end");
  std::vector<IndexRange> ranges;
  for (unsigned place = 0; place < bounds.size(); place += 2) ranges.push_back({bounds[place], bounds[place + 1]});
  return ranges;
}

Published read(wire::Published::Reader source) {
  Published published;
  for (const auto placement : checked_list(source.getPlacements())) {
    std::vector<RefusedRecords> refused;
    for (const auto each : checked_list(placement.getRefused()))
      refused.push_back({read_text(each.getCode()), read_text(each.getText()), read_ranges(each.getRecords())});
    published.placements.push_back({placement.getPartition(), placement.getBaseOffset(), placement.getCopies(),
                                    read_ranges(placement.getReturned()), std::move(refused),
                                    placement.getLeaderEpoch(),
                                    {placement.getTopicIdHigh(), placement.getTopicIdLow()}});
  }
  return published;
}

Subscribed read(wire::Subscribed::Reader source) {
  const auto kind = static_cast<std::uint16_t>(source.getKind());
  if (kind > static_cast<std::uint16_t>(SubscriptionKind::reader)) malformed_frame("a subscription of an unknown kind");
  return {source.getSubscription(), static_cast<SubscriptionKind>(kind), source.getLeaseMs(), source.getLeaderEpoch(),
          source.getTopicIdHigh(), source.getTopicIdLow()};
}

Deliver read(wire::Deliver::Reader source) {
  return {source.getSubscription(), source.getPartition(), source.getDeliveryId(), source.getAttempt(),
          source.getPassedTo()};
}

Settled read(wire::Settled::Reader source) {
  Settled settled;
  for (const auto refusal : checked_list(source.getRefused()))
    settled.refused.push_back({refusal.getEntry(), read_text(refusal.getCode()), read_text(refusal.getText())});
  return settled;
}

Assigned read(wire::Assigned::Reader source) {
  Assigned assigned{source.getSubscription(), source.getEpoch(), {}, {}};
  for (const std::int32_t partition : checked_list(source.getPartitions())) assigned.partitions.push_back(partition);
  for (const std::int32_t partition : checked_list(source.getRevoked())) assigned.revoked.push_back(partition);
  return assigned;
}

Ended read(wire::Ended::Reader source) {
  return {source.getSubscription(), read_text(source.getCode()), read_text(source.getText())};
}

LeaseEnded read(wire::LeaseEnded::Reader source) {
  return {source.getSubscription(), source.getPartition(), source.getDeliveryId()};
}

TopicInfo read(wire::TopicInfo::Reader source) {
  TopicInfo topic{read_text(source.getName()),        read_text(source.getKind()), read_text(source.getDelivery()),
                  read_text(source.getPartitioner()), source.getMessageBytesMax(), {},
                  {source.getIdHigh(), source.getIdLow()}};
  for (const auto partition : checked_list(source.getPartitions()))
    topic.partitions.push_back({partition.getLeader(), partition.getStartOffset(), partition.getHighWatermark(),
                                partition.getLeaderEpoch()});
  return topic;
}

Description read(wire::Description::Reader source) {
  Description description;
  for (const auto node : checked_list(source.getNodes()))
    description.nodes.push_back({node.getId(), read_text(node.getAddress())});
  for (const auto topic : checked_list(source.getTopics())) description.topics.push_back(read(topic));
  return description;
}

Incoming read_member(Frame::Reader root) {
  switch (root.which()) {
    case Frame::WELCOME: return read(root.getWelcome());
    case Frame::CHALLENGE: return read(root.getChallenge());
    case Frame::FAILED: return read(root.getFailed());
    case Frame::DONE: return Done{};
    case Frame::PING: return Ping{};
    case Frame::PONG: return Pong{};
    case Frame::GOODBYE: return Goodbye{read_text(root.getGoodbye().getReason())};
    case Frame::PUBLISHED: return read(root.getPublished());
    case Frame::FETCHED: {
      const auto fetched = root.getFetched();
      return FetchedHead{fetched.getStartOffset(), fetched.getHighWatermark(), fetched.getNextOffset()};
    }
    case Frame::FOUND_OFFSET: return FoundOffset{root.getFoundOffset().getOffset()};
    case Frame::SUBSCRIBED: return read(root.getSubscribed());
    case Frame::DELIVER: return read(root.getDeliver());
    case Frame::SETTLED: return read(root.getSettled());
    case Frame::ASSIGNED: return read(root.getAssigned());
    case Frame::ENDED: return read(root.getEnded());
    case Frame::LEASE_ENDED: return read(root.getLeaseEnded());
    case Frame::DESCRIPTION: return read(root.getDescription());
    case Frame::ADMINISTERED: return Administered{read_text(root.getAdministered().getResult())};
    case Frame::RESOLVED:
    case Frame::INBOX:
    case Frame::REPLY:
    case Frame::OPENED_TRANSACTIONS: malformed_frame("the broker answered what this client never asks");
    case Frame::HELLO:
    case Frame::AUTHENTICATE:
    case Frame::PUBLISH:
    case Frame::FETCH:
    case Frame::FIND_OFFSET:
    case Frame::SUBSCRIBE:
    case Frame::UNSUBSCRIBE:
    case Frame::CREDIT:
    case Frame::HEARTBEAT:
    case Frame::SEEK:
    case Frame::COMMIT:
    case Frame::RESOLVE:
    case Frame::OPEN_TRANSACTIONS:
    case Frame::ADD_BRANCH:
    case Frame::SETTLE_IN_TRANSACTION:
    case Frame::END_TRANSACTION:
    case Frame::PULL:
    case Frame::SETTLE:
    case Frame::DESCRIBE:
    case Frame::OPEN_INBOX:
    case Frame::ADMINISTER: malformed_frame("the broker sent a message that only clients send");
    case Frame::PEER_CHALLENGE:
    case Frame::PEER_PROOF:
    case Frame::PEER_WELCOME:
    case Frame::PEER_PONG:
    case Frame::OPEN_LANE:
    case Frame::CLOSE_LANE:
    case Frame::FOLLOW:
    case Frame::FOLLOWED:
    case Frame::REPLICATE:
    case Frame::REPLICATED:
    case Frame::JOIN_TRANSACTION:
    case Frame::MARK_TRANSACTION: malformed_frame("the broker sent a message that only brokers send to one another");
  }
  return Unknown{};
}

}  // namespace

std::string encode(std::uint64_t correlation, const Hello& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto hello = root.initHello();
    hello.setVersionMin(message.version_min);
    hello.setVersionMax(message.version_max);
    write_texts(hello.initFeatures(static_cast<unsigned>(message.features.size())), message.features);
    hello.setClient(to_text(message.client));
    hello.setProducerId(message.ids.producer_id);
    hello.setProducerKey(message.ids.key);
    hello.setLogsIn(message.logs_in);
  });
}

std::string encode(std::uint64_t correlation, const Authenticate& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto authenticate = root.initAuthenticate();
    authenticate.setMechanism(to_text(message.mechanism));
    authenticate.setData(to_text(message.data));
  });
}

std::string encode(std::uint64_t correlation, const Publish& message, std::uint16_t batches) {
  return frame(correlation, batches, [&](Frame::Builder root) {
    auto publish = root.initPublish();
    publish.setTarget(to_text(message.target));
    publish.setToExchange(message.to_exchange);
    publish.setAcks(static_cast<wire::Acks>(message.acks));
    publish.setPartition(message.partition);
    publish.setMandatory(message.mandatory);
  });
}

std::string encode(std::uint64_t correlation, const FetchRequest& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto fetch = root.initFetch();
    fetch.setTopic(to_text(message.topic));
    fetch.setPartition(message.partition);
    fetch.setOffset(message.offset);
    fetch.setBytesMin(message.bytes_min);
    fetch.setBytesMax(message.bytes_max);
    fetch.setWaitMaxMs(to_ms(message.wait));
    fetch.setWhere(to_text(message.where));
    fetch.setUnsettled(message.unsettled);
  });
}

std::string encode(std::uint64_t correlation, const FindOffset& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto find = root.initFindOffset();
    find.setTopic(to_text(message.topic));
    find.setPartition(message.partition);
    find.setTimestampMs(message.timestamp_ms);
    find.setPlace(static_cast<wire::Place>(message.place));
  });
}

std::string encode(std::uint64_t correlation, const Subscribe& options) {
  return frame(correlation, [&](Frame::Builder root) {
    auto subscribe = root.initSubscribe();
    subscribe.setTopic(to_text(options.topic));
    subscribe.setGroup(to_text(options.group));
    subscribe.setCredit(options.credit);
    subscribe.setStart(options.start);
    auto partitions = subscribe.initPartitions(static_cast<unsigned>(options.partitions.size()));
    for (unsigned index = 0; index < partitions.size(); ++index) partitions.set(index, options.partitions[index]);
    subscribe.setWhere(to_text(options.where));
    subscribe.setMember(to_text(options.member));
    subscribe.setShared(to_text(options.shared));
    subscribe.setLeaderEpoch(options.leader_epoch);
    subscribe.setTopicIdHigh(options.topic_id_high);
    subscribe.setTopicIdLow(options.topic_id_low);
    if (options.starts.empty()) return;
    auto starts = subscribe.initStarts(static_cast<unsigned>(options.starts.size()));
    for (unsigned index = 0; index < starts.size(); ++index) starts.set(index, options.starts[index]);
  });
}

std::string encode(std::uint64_t correlation, const Unsubscribe& message) {
  return frame(correlation, [&](Frame::Builder root) { root.initUnsubscribe().setSubscription(message.subscription); });
}

std::string encode(std::uint64_t correlation, const Credit& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto credit = root.initCredit();
    credit.setSubscription(message.subscription);
    credit.setRecords(message.records);
  });
}

std::string encode(std::uint64_t correlation, const Heartbeat& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto heartbeat = root.initHeartbeat();
    heartbeat.setSubscription(message.subscription);
    heartbeat.setEpoch(message.epoch);
  });
}

std::string encode(std::uint64_t correlation, const Settle& message) {
  // Those of neighbours are mostly the same one.
  std::vector<std::string> reasons;
  std::vector<std::uint16_t> places;
  std::size_t reason_words = 0;
  for (const Settlement& entry : message.entries) {
    std::string reason = utf8_of(entry.reason, reason_bytes_max);
    const bool is_new = !reason.empty() && (reasons.empty() || reasons.back() != reason);
    if (is_new) reason_words += 2 + reason.size() / 8;
    places.push_back(reason.empty() ? 0 : static_cast<std::uint16_t>(reasons.size() + (is_new ? 1 : 0)));
    if (is_new) reasons.push_back(std::move(reason));
  }
  const auto words = static_cast<unsigned>(17 + 5 * message.entries.size() + reason_words);
  const auto fill = [&](Frame::Builder root) {
    auto settle = root.initSettle();
    settle.setSubscription(message.subscription);
    auto entries = settle.initEntries(static_cast<unsigned>(message.entries.size()));
    for (unsigned index = 0; index < entries.size(); ++index) {
      const Settlement& entry = message.entries[index];
      entries[index].setPartition(entry.partition);
      entries[index].setDeliveryId(entry.delivery_id);
      entries[index].setFirst(entry.first);
      entries[index].setEnd(entry.end);
      entries[index].setVerdict(static_cast<wire::Verdict>(entry.verdict));
      entries[index].setMs(entry.ms);
      entries[index].setReason(places[index]);
    }
    if (!reasons.empty()) write_texts(settle.initReasons(static_cast<unsigned>(reasons.size())), reasons);
  };
  return frame(correlation, 0, fill, words);
}

std::string encode(std::uint64_t correlation, const Describe& message) {
  return frame(correlation, [&](Frame::Builder root) {
    write_texts(root.initDescribe().initTopics(static_cast<unsigned>(message.topics.size())), message.topics);
  });
}

std::string encode(std::uint64_t correlation, const Administer& message) {
  return frame(correlation, [&](Frame::Builder root) {
    auto administer = root.initAdminister();
    administer.setVerb(to_text(message.verb));
    administer.setArguments(to_text(message.arguments));
  });
}

std::string encode(std::uint64_t correlation, const Goodbye& message) {
  return frame(correlation, [&](Frame::Builder root) { root.initGoodbye().setReason(to_text(message.reason)); });
}

std::string encode(std::uint64_t correlation, const Ping&) {
  return frame(correlation, [](Frame::Builder root) { root.setPing(); });
}

std::string encode(std::uint64_t correlation, const Pong&) {
  return frame(correlation, [](Frame::Builder root) { root.setPong(); });
}

IncomingFrame decode_frame(std::string_view bytes) {
  try {
    ControlMessage message(bytes);
    const Frame::Reader root = message.root();
    return {root.getCorrelation(), root.getBatches(), read_member(root)};
  } catch (const kj::Exception&) {
    malformed_frame("a control message can't be read");
  }
}

}  // namespace linn::detail
