// What a test needs: cases by name, and checks that say what was wrong and where.
#pragma once

#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include <linn/error.h>

struct Case {
  const char* promise;
  std::function<void()> body;
};

struct CheckFailed : std::exception {};

#define CHECK(condition)                                                              \
  do {                                                                                \
    if (!(condition)) {                                                               \
      std::cerr << "  " << __FILE__ << ":" << __LINE__ << ": " << #condition << "\n"; \
      throw CheckFailed();                                                            \
    }                                                                                 \
  } while (false)

/// The code of the Error that `body` throws; "" where it throws none.
template <typename Body>
std::string code_of(const Body& body) {
  try {
    body();
  } catch (const linn::Error& error) {
    return error.code();
  }
  return "";
}

inline int run(const std::vector<Case>& cases) {
  int failures = 0;
  for (const Case& each : cases) {
    try {
      each.body();
    } catch (const CheckFailed&) {
      ++failures;
      std::cerr << "failed: " << each.promise << "\n";
    } catch (const std::exception& error) {
      ++failures;
      std::cerr << "failed: " << each.promise << ": " << error.what() << "\n";
    }
  }
  std::cout << cases.size() - static_cast<std::size_t>(failures) << " of " << cases.size() << " hold\n";
  return failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
