// A worker and a publisher with the client's defaults, for tests with a real broker.
//
//     linn-test-worker URL work TOPIC JOB_MS   print "ready", and "begin VALUE ATTEMPT" and "done ..." for each job
//     linn-test-worker URL read TOPIC          print "read VALUE" for each message, and "refused CODE" at the end
//     linn-test-worker URL publish TOPIC       publish the lines of standard input, and print each when it is stored
//     linn-test-worker URL count NAME topic|exchange TARGET PARTITION
//                                              for each line of standard input: publish NAME and the numbers below it
//                                              that were not published before, in small batches, and print how many are
//                                              confirmed after each; or, for "flush", wait for all, and print "flushed"
//
// With TLS_CA in the environment it trusts that authority; with LOGIN_USER and LOGIN_PASSWORD it logs in, and with
// LOGIN_TOKEN_FILE too: it prints "token" when it is asked for the token.
#include <chrono>
#include <cstdlib>
#include <deque>
#include <fstream>
#include <iostream>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include <linn/linn.h>

namespace {

std::optional<linn::Login> login() {
  const char* user = std::getenv("LOGIN_USER");
  const char* token_file = std::getenv("LOGIN_TOKEN_FILE");
  if (user != nullptr) return linn::Password(user, std::getenv("LOGIN_PASSWORD"));
  if (token_file == nullptr) return std::nullopt;
  return linn::Token([path = std::string(token_file)] {
    std::string token;
    std::getline(std::ifstream(path) >> std::ws, token);
    std::cout << "token" << std::endl;
    return token;
  });
}

linn::ClientOptions options() {
  linn::ClientOptions chosen{.login = login()};
  if (const char* ca = std::getenv("TLS_CA")) chosen.tls = linn::TlsOptions{.ca = ca};
  return chosen;
}

void work(const linn::Client& client, const std::string& topic, std::chrono::milliseconds job) {
  linn::Consumer consumer = client.consumer({.topic = topic});
  std::cout << "ready" << std::endl;
  while (const auto message = consumer.next()) {
    const std::string name = std::string(message->record().value().value()) + " " + std::to_string(message->attempt);
    std::cout << "begin " << name << std::endl;
    std::this_thread::sleep_for(job);
    consumer.ack(*message);
    std::cout << "done " << name << std::endl;
  }
}

void read(const linn::Client& client, const std::string& topic) {
  linn::Consumer consumer = client.consumer({.topic = topic});
  try {
    while (const auto message = consumer.next())
      std::cout << "read " << std::string(message->record().value().value()) << std::endl;
  } catch (const linn::Error& error) {
    std::cout << "refused " << error.code() << std::endl;
  }
}

void publish(const linn::Client& client, const std::string& topic) {
  linn::Producer producer = client.producer({.topic = topic});
  for (std::string line; std::getline(std::cin, line);) {
    producer.publish({.value = line});
    std::cout << line << std::endl;
  }
}

/// Each number has one of seven keys and, for an exchange, the routing key "number.even" or "number.odd".
linn::Record record_of(const std::string& name, int number) {
  return {.value = name + " " + std::to_string(number),
          .key = std::to_string(number % 7),
          .routing_key = number % 2 == 0 ? "number.even" : "number.odd"};
}

class Counter {
 public:
  Counter(std::string name, linn::Producer producer) : name_(std::move(name)), producer_(std::move(producer)) {}

  void publish_below(int end) {
    constexpr int batch_records = 20;
    while (next_ < end) {
      for (int records = 0; records < batch_records && next_ < end; ++records) producer_.add(record_of(name_, next_++));
      unconfirmed_.emplace_back(next_, *producer_.send());
      for (; !unconfirmed_.empty() && unconfirmed_.front().second.ready(); unconfirmed_.pop_front()) {
        unconfirmed_.front().second.wait();
        std::cout << unconfirmed_.front().first << std::endl;
      }
    }
  }

  void flush() {
    producer_.flush();
    std::cout << "flushed" << std::endl;
  }

 private:
  std::string name_;
  linn::Producer producer_;
  int next_ = 0;
  std::deque<std::pair<int, linn::Confirmation>> unconfirmed_;
};

void count(const linn::Client& client, std::string name, linn::ProducerOptions options) {
  Counter counter(std::move(name), client.producer(std::move(options)));
  for (std::string line; std::getline(std::cin, line);) {
    if (line == "flush")
      counter.flush();
    else
      counter.publish_below(std::stoi(line));
  }
}

}  // namespace

int main(int, char** argv) {
  try {
    const linn::Client client = linn::Client::connect(argv[1], options());
    const std::string command = argv[2];
    if (command == "work") {
      work(client, argv[3], std::chrono::milliseconds(std::stoi(argv[4])));
    } else if (command == "read") {
      read(client, argv[3]);
    } else if (command == "publish") {
      publish(client, argv[3]);
    } else {
      linn::ProducerOptions options{.partition = std::stoi(argv[6])};
      if (std::string(argv[4]) == "exchange")
        options.exchange = argv[5];
      else
        options.topic = argv[5];
      count(client, argv[3], std::move(options));
    }
  } catch (const linn::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
