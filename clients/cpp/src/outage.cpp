#include "outage.h"

#include <cstdio>
#include <iostream>
#include <utility>

namespace linn::detail {
namespace {

void to_standard_error(const std::string& line) { std::cerr << "linn: " + line + "\n"; }

std::string seconds_of(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.1f s", std::chrono::duration<double>(time).count());
  return text;
}

}  // namespace

Outage::Outage(std::string_view url, std::function<void(const std::string&)> log)
    : url_(url), log_(log ? std::move(log) : to_standard_error) {}

void Outage::tell(const std::string& line) const {
  const std::lock_guard lock(log_mutex_);
  log_(line);
}

void Outage::begins(const Error& reason, Clock::time_point now) {
  set_reason(reason);
  began_ = told_ = now;
  tell("connection to " + url_ + " lost, connecting again: " + reason.text());
}

void Outage::goes_on(const Error& reason, Clock::time_point now) {
  set_reason(reason);
  if (now - told_ < tell_again_after) return;
  told_ = now;
  tell("still no connection to " + url_ + " after " + seconds_of(now - began_) + ": " + reason.text());
}

void Outage::ends(Clock::time_point now) {
  set_reason(std::nullopt);
  tell("connected to " + url_ + " again after " + seconds_of(now - began_));
}

std::optional<Error> Outage::reason() const {
  const std::lock_guard lock(mutex_);
  return reason_;
}

std::string Outage::text() const {
  const auto known = reason();
  return known ? known->text() : "the broker is stopping";
}

void Outage::set_reason(std::optional<Error> reason) {
  const std::lock_guard lock(mutex_);
  reason_ = std::move(reason);
}

}  // namespace linn::detail
