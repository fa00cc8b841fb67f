// ScriptedBroker: a peer on a Unix socket that does what a test tells it, byte by byte where it must.
#pragma once

#include <array>
#include <exception>
#include <filesystem>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <capnp/message.h>
#include <capnp/serialize.h>

#include <linn/batch.h>
#include <linn/frame.h>

#include "frame_reader.h"
#include "protocol.capnp.h"
#include "socket.h"

using linn::detail::Clock;
using linn::detail::FrameReader;
using linn::detail::Socket;
namespace wire = linn::wire;

/// A publish that a peer received, with the value of its first record.
struct HeardPublish {
  std::uint64_t correlation;
  std::string value;
  linn::BatchHeader numbers;
};

/// The broker's end of one connection. Every wait ends within ten seconds.
class Peer {
 public:
  explicit Peer(Socket socket) : socket_(std::move(socket)), frames_(64 << 20) {}

  /// The next whole message; std::nullopt at the end of the stream.
  std::optional<std::string> read_bytes() {
    for (;;) {
      if (auto message = frames_.next()) return message;
      if (!socket_.wait_readable(Clock::now() + std::chrono::seconds(10)))
        throw std::runtime_error("the client sent nothing");
      std::array<char, 65536> buffer;
      try {
        frames_.feed({buffer.data(), socket_.receive(buffer.data(), buffer.size())});
      } catch (const linn::Error&) {
        return std::nullopt;
      }
    }
  }

  /// The next message that is no ping.
  linn::FrameContent read() {
    for (;;) {
      const auto bytes = read_bytes();
      if (!bytes) throw std::runtime_error("the client closed");
      linn::FrameContent content = linn::read_frame(*bytes);
      if (content.member != "ping") return content;
    }
  }

  /// Read until the client closes the connection.
  void until_closed() {
    while (read_bytes()) {
    }
  }

  void send_bytes(std::string_view bytes) const {
    const std::array<std::string_view, 1> buffers{bytes};
    socket_.send_all(buffers, std::chrono::seconds(10));
  }

  template <typename Fill>
  void send(std::uint64_t correlation, const Fill& fill) const {
    capnp::MallocMessageBuilder message;
    auto root = message.initRoot<wire::Frame>();
    root.setCorrelation(correlation);
    fill(root);
    const auto words = capnp::messageToFlatArray(message);
    const auto bytes = words.asChars();
    send_bytes({bytes.begin(), bytes.size()});
  }

  void fail(std::uint64_t correlation, const char* code, bool retriable = false) const {
    send(correlation, [&](wire::Frame::Builder root) {
      auto said = root.initFailed();
      said.setCode(code);
      said.setRetriable(retriable);
    });
  }

  /// The next message, which must be a publish of one batch.
  HeardPublish hear_publish() {
    const linn::FrameContent content = read();
    if (content.member != "publish") throw std::runtime_error("the client sent no publish, but " + content.member);
    const linn::Batch batch = linn::Batch::decode(read_bytes().value());
    return {content.correlation, std::string(batch[0].value().value()), batch.header()};
  }

  void confirm(std::uint64_t correlation, std::int64_t offset = 0, std::int32_t leader_epoch = 0) const {
    send(correlation, [&](wire::Frame::Builder root) {
      auto placement = root.initPublished().initPlacements(1)[0];
      placement.setBaseOffset(offset);
      placement.setLeaderEpoch(leader_epoch);
    });
  }

  /// Refuse the second of three records, and confirm the others.
  void refuse_second(std::uint64_t correlation) const {
    send(correlation, [&](wire::Frame::Builder root) {
      auto placement = root.initPublished().initPlacements(1)[0];
      placement.setCopies(2);
      auto refused = placement.initRefused(1)[0];
      refused.setCode("message.too_large");
      refused.setText("as the test wants it");
      auto records = refused.initRecords(2);
      records.set(0, 1);
      records.set(1, 2);
    });
  }

  void found(std::uint64_t correlation, std::int64_t offset) const {
    send(correlation, [&](wire::Frame::Builder root) { root.initFoundOffset().setOffset(offset); });
  }

  /// Answer the hello, which is returned. `node`: the broker's number in a cluster.
  linn::FrameContent welcome(std::uint32_t keepalive_ms = 20'000, std::uint16_t version = 1,
                             std::int64_t producer_id = 256, std::uint32_t node = 0, const char* cluster = "") {
    linn::FrameContent hello = read();
    if (hello.member != "hello") throw std::runtime_error("the first message is no hello");
    send(hello.correlation, [&](wire::Frame::Builder root) {
      auto said = root.initWelcome();
      said.setVersion(version);
      said.setBroker("scripted");
      said.setFrameBytesMax(64 << 20);
      said.setMessageBytesMax(64 << 20);
      said.setKeepaliveMs(keepalive_ms);
      said.setInflightMax(100);
      said.setProducerId(producer_id);
      said.setProducerKey(7);
      said.setNode(node);
      said.setCluster(cluster);
    });
    return hello;
  }

 private:
  Socket socket_;
  FrameReader frames_;
};

/// Takes one connection after the other and runs a script with each, in a thread of its own; then it is away.
class ScriptedBroker {
 public:
  using Script = std::function<void(Peer&)>;

  explicit ScriptedBroker(Script script) : ScriptedBroker(std::vector<Script>{std::move(script)}) {}
  explicit ScriptedBroker(std::vector<Script> scripts) {
    std::string folder = (std::filesystem::temp_directory_path() / "linn-XXXXXX").string();
    if (::mkdtemp(folder.data()) == nullptr) throw std::runtime_error("no temporary folder");
    folder_ = folder;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    path().copy(address.sun_path, sizeof address.sun_path - 1);
    listener_ = Socket(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (::bind(listener_.descriptor(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_.descriptor(), 8) != 0)
      throw std::runtime_error("can't listen");
    thread_ = std::thread([this, scripts = std::move(scripts)] { serve(scripts); });
  }

  ~ScriptedBroker() {
    if (thread_.joinable()) {
      reach_next_script();
      thread_.join();
    }
    std::filesystem::remove_all(folder_);
  }

  std::string path() const { return (folder_ / "s").string(); }
  std::string url() const { return "linn+unix://" + path(); }

  /// Wait for the end of the script. Throws what it threw.
  void finish() {
    thread_.join();
    if (thrown_) std::rethrow_exception(thrown_);
  }

 private:
  /// End its wait for a connection that does not come any more.
  void reach_next_script() const {
    try {
      Socket::connect({path(), {}, {}}, Clock::now());
    } catch (const linn::Error&) {
      // It was in its last one.
    }
  }

  void serve(const std::vector<Script>& scripts) {
    try {
      for (std::size_t index = 0; index < scripts.size(); ++index) {
        Peer peer(Socket(::accept4(listener_.descriptor(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC)));
        if (index + 1 == scripts.size()) listener_ = Socket();
        scripts[index](peer);
      }
    } catch (...) {
      thrown_ = std::current_exception();
    }
  }

  std::filesystem::path folder_;
  Socket listener_;
  std::thread thread_;
  std::exception_ptr thrown_;
};
