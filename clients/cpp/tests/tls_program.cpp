// Publishes and receives inside TLS, for tests with a real broker: `linn-test-tls URL`, and TLS_CA, TLS_CERTIFICATE and
// TLS_KEY in the environment. Prints "received N", or the error's code and text.
#include <cstdlib>
#include <iostream>
#include <string>

#include <linn/linn.h>

namespace {

constexpr int count = 20;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

int received(const linn::Client& client) {
  {
    linn::Producer producer = client.producer({.topic = "jobs"});
    for (int number = 0; number < count; ++number) {
      const std::string value(300'000, static_cast<char>(number));
      producer.publish({.value = value});
    }
  }
  linn::Consumer consumer = client.consumer({.topic = "jobs"});
  int whole = 0;
  for (int number = 0; number < count; ++number) {
    const auto message = consumer.next();
    const std::string value(message->record().value().value());
    if (value == std::string(300'000, value.front())) ++whole;
    consumer.ack(*message);
  }
  return whole;
}

}  // namespace

int main(int, char** arguments) {
  try {
    linn::ClientOptions options;
    const linn::TlsOptions tls{variable("TLS_CA"), variable("TLS_CERTIFICATE"), variable("TLS_KEY")};
    if (variable("TLS") != "null") options.tls = tls;
    const int whole = received(linn::Client::connect(arguments[1], options));
    std::cout << "received " << whole << std::endl;
  } catch (const linn::Error& error) {
    std::cout << error.code() << " " << error.what() << std::endl;
  }
  return 0;
}
