// Leaders: which brokers lead the topics of a client's producers, as descriptions say, and which to connect to. No I/O.
//
// Laws: a description is advice, since a broker passes on what it does not lead. Of two descriptions of a topic the one
// with the later epoch counts. There is at most one connection to a broker beside the broker at hand, and one attempt
// at a time to make it. A broker that can't be reached is tried again after a rest, which doubles with each failure, for
// as long as it leads a topic of a producer.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <linn/uuid.h>

#include "messages.h"
#include "socket.h"

namespace linn::detail {

/// The time after which topics are described again.
inline constexpr std::chrono::seconds description_age_max{60};
/// The same, where the broker at hand does not know yet what a confirmation of another one has told.
inline constexpr std::chrono::milliseconds old_news_age_max{500};
/// The rest of a broker after the connection to it was lost; after it could not be reached, the first and the longest one.
inline constexpr std::chrono::milliseconds rest_after_loss{500};
inline constexpr std::chrono::seconds rest_min{5};
inline constexpr std::chrono::seconds rest_max{60};

/// Safe to use from many threads, under any other mutex. Times are arguments: those of the caller's clock.
class Leaders {
 public:
  struct Target {
    std::uint32_t node = 0;
    std::string address;
  };

  // --- by producers ---

  /// Begin to ask who leads a topic. It counts how often.
  void watch(const std::string& topic, Clock::time_point now);
  void unwatch(const std::string& topic);
  /// A batch was stored in an epoch of a topic; whether it is time to ask who leads it.
  bool confirmed(const std::string& topic, const Uuid& topic_id, std::int32_t epoch, Clock::time_point now);
  /// A broker said that it does not lead the topic; whether it is time to ask who does.
  bool not_led(const std::string& topic, Clock::time_point now);

  // --- by the session ---

  /// The number of the broker at hand, to which there is a new connection; 0: it is in no cluster, and leads all.
  void at_hand(std::uint32_t node, Clock::time_point now);
  void told(const Description& description, Clock::time_point now);
  /// The topics to be described now, which count as asked for.
  std::vector<std::string> to_describe(Clock::time_point now);
  /// A broker to connect to now, which counts as being tried until `reached` or `failed`.
  std::optional<Target> to_reach(Clock::time_point now);
  void reached(std::uint32_t node);
  /// Whether it is the first failure since the broker was reached.
  bool failed(std::uint32_t node, Clock::time_point now);
  /// The connection to it is lost.
  void lost(std::uint32_t node, Clock::time_point now);

  /// The node that leads a topic; 0: unknown.
  std::uint32_t leader_of(const std::string& topic) const;
  /// Whether it is known which connection is for the topic: no answer and no attempt to connect is to be waited for.
  bool is_settled(const std::string& topic, Clock::time_point now) const;
  /// When there is something to describe or to reach; max() where nothing is.
  Clock::time_point next_time() const;

 private:
  struct Topic {
    std::size_t watchers = 0;
    bool is_told = false;
    Uuid id = {};
    std::int32_t epoch = 0;
    std::uint32_t node = 0;
    /// The latest epoch of a confirmation.
    std::int32_t confirmed_epoch = 0;
    Clock::time_point describe_at = {};
  };

  struct Node {
    /// Empty: it was not told.
    std::string address = {};
    /// Whether there is a connection to it, or an attempt to make one.
    bool is_taken = false;
    bool is_connected = false;
    /// The last rest; 0: it was reached.
    Clock::duration rest{0};
    Clock::time_point rests_until = Clock::time_point::min();
  };

  bool has_to_be_reached(std::uint32_t number) const;
  bool describe_soon(const std::string& topic, Clock::time_point now);

  mutable std::mutex mutex_;
  std::uint32_t at_hand_ = 0;
  std::map<std::string, Topic> topics_;
  std::map<std::uint32_t, Node> nodes_;
};

}  // namespace linn::detail
