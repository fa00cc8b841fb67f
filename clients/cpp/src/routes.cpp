#include "routes.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include <capnp/message.h>
#include <capnp/serialize.h>
#include <kj/exception.h>

#include <linn/error.h>

#include "batch.capnp.h"
#include "bytes.h"
#include "utf8.h"

namespace linn::detail {
namespace {

void check_text(std::string_view text, const char* what) {
  if (text.size() > text_bytes_max) throw Error("message.invalid", std::string(what) + " has more than 4,096 bytes");
  if (!is_utf8(text)) throw Error("message.invalid", std::string(what) + " is not UTF-8");
}

capnp::Text::Reader to_text(const std::string& text) { return {text.c_str(), text.size()}; }

std::size_t text_words(std::string_view text) noexcept { return text.size() / 8 + 1; }

/// The size of the message, so that it has one segment.
std::size_t words_of(const std::vector<Pair>& pairs) noexcept {
  std::size_t words = 4;
  for (const Pair& pair : pairs) {
    words += 3 + text_words(pair.routing_key);
    for (const Label& label : pair.labels) {
      words += 4 + text_words(label.name);
      if (const auto* text = std::get_if<std::string>(&label.value)) words += text_words(*text);
    }
  }
  return words;
}

void write_value(wire::Label::Value::Builder target, const LabelValue& value) {
  if (const auto* text = std::get_if<std::string>(&value))
    target.setText(to_text(*text));
  else if (const auto* number = std::get_if<std::int64_t>(&value))
    target.setInt(*number);
  else if (const auto* real = std::get_if<double>(&value))
    target.setFloat(*real);
  else
    target.setBool(std::get<bool>(value));
}

std::string read_text(capnp::Text::Reader text) {
  const std::string_view bytes(text.begin(), text.size());
  if (bytes.size() > text_bytes_max) throw Error("batch.malformed", "a routing key or label is over 4,096 bytes");
  if (!is_utf8(bytes)) throw Error("batch.malformed", "a routing key or label is not UTF-8");
  return std::string(bytes);
}

LabelValue read_value(wire::Label::Value::Reader value) {
  switch (value.which()) {
    case wire::Label::Value::TEXT: return read_text(value.getText());
    case wire::Label::Value::INT: return value.getInt();
    case wire::Label::Value::FLOAT: return value.getFloat();
    case wire::Label::Value::BOOL: return value.getBool();
  }
  throw Error("batch.malformed", "a label has a type that this client does not know");
}

Pair read_pair(wire::Pair::Reader source) {
  Pair pair{read_text(source.getRoutingKey()), {}};
  const auto labels = source.getLabels();
  if (labels.size() > labels_max) throw Error("batch.malformed", "a pair has more than 256 labels");
  for (const auto label : labels) {
    std::string name = read_text(label.getName());
    if (!pair.labels.empty() && name <= pair.labels.back().name)
      throw Error("batch.malformed", "the labels of a record are not sorted by name, or a name repeats");
    pair.labels.push_back({std::move(name), read_value(label.getValue())});
  }
  return pair;
}

}  // namespace

Pair make_pair_of(std::string_view routing_key, const std::vector<Label>& labels) {
  check_text(routing_key, "a routing key");
  if (labels.size() > labels_max) throw Error("message.invalid", "a record has more than 256 labels");
  for (const Label& label : labels) {
    check_text(label.name, "a label's name");
    if (const auto* text = std::get_if<std::string>(&label.value)) check_text(*text, "a label");
  }
  Pair pair{std::string(routing_key), labels};
  // By bytes, which in UTF-8 is the order of code points.
  std::ranges::sort(pair.labels, {}, &Label::name);
  if (std::ranges::adjacent_find(pair.labels, {}, &Label::name) != pair.labels.end())
    throw Error("message.invalid", "two labels of a record have the same name");
  return pair;
}

std::string identity_of(const Pair& pair) {
  std::string identity;
  const auto append_text = [&](std::string_view text) {
    append(identity, text.size());
    identity += text;
  };
  append_text(pair.routing_key);
  for (const Label& label : pair.labels) {
    append_text(label.name);
    identity += static_cast<char>(label.value.index());
    if (const auto* text = std::get_if<std::string>(&label.value))
      append_text(*text);
    else if (const auto* number = std::get_if<std::int64_t>(&label.value))
      append(identity, *number);
    else if (const auto* real = std::get_if<double>(&label.value))
      append(identity, std::bit_cast<std::uint64_t>(*real));
    else
      identity += std::get<bool>(label.value) ? '\1' : '\0';
  }
  return identity;
}

std::string encode_routes(const std::vector<Pair>& pairs) {
  capnp::MallocMessageBuilder message(static_cast<unsigned>(words_of(pairs)), capnp::AllocationStrategy::FIXED_SIZE);
  auto targets = message.initRoot<wire::Routes>().initPairs(static_cast<unsigned>(pairs.size()));
  unsigned index = 0;
  for (const Pair& pair : pairs) {
    auto target = targets[index++];
    target.setRoutingKey(to_text(pair.routing_key));
    if (pair.labels.empty()) continue;
    auto labels = target.initLabels(static_cast<unsigned>(pair.labels.size()));
    unsigned place = 0;
    for (const Label& label : pair.labels) {
      labels[place].setName(to_text(label.name));
      write_value(labels[place++].getValue(), label.value);
    }
  }
  const auto words = capnp::messageToFlatArray(message);
  const auto bytes = words.asBytes();
  if (bytes.size() > routes_bytes_max)
    throw Error("message.invalid", "the routing keys and labels of a batch are over 2,097,152 bytes");
  return std::string(reinterpret_cast<const char*>(bytes.begin()), bytes.size());
}

std::vector<Pair> decode_routes(std::string_view bytes, std::size_t count) {
  if (bytes.size() > routes_bytes_max)
    throw Error("batch.malformed", "the routes of the batch are over 2,097,152 bytes");
  if (bytes.empty() || bytes.size() % 8 != 0) throw Error("batch.malformed", "the routes of the batch are no message");
  auto words = kj::heapArray<capnp::word>(bytes.size() / 8);
  std::memcpy(words.begin(), bytes.data(), bytes.size());
  try {
    // Each word is read once: a message that points at the same bytes again and again is refused.
    capnp::FlatArrayMessageReader message(words, {.traversalLimitInWords = words.size() + 64, .nestingLimit = 8});
    const auto sources = message.getRoot<wire::Routes>().getPairs();
    if (sources.size() != count)
      throw Error("batch.malformed", "the routes hold another number of pairs than the batch says");
    std::vector<Pair> pairs;
    pairs.reserve(count);
    for (const auto source : sources) pairs.push_back(read_pair(source));
    return pairs;
  } catch (const kj::Exception&) {
    throw Error("batch.malformed", "the routes of the batch can't be read");
  }
}

}  // namespace linn::detail
