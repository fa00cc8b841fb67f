// Publish a few messages into a queue, and work them off.
//
//     linn serve &
//     linn topics create greetings --kind queue
//     ./linn-greetings linn://127.0.0.1:5466

#include <chrono>
#include <iostream>
#include <string>

#include <linn/linn.h>

namespace {

void run(const std::string& url) {
  const linn::Client client = linn::Client::connect(url);
  std::cout << "connected to " << client.broker().name << "\n";

  linn::Producer producer = client.producer({.topic = "greetings"});
  const linn::Receipt receipt = producer.publish({.value = "hello", .labels = {{"lang", "en"}}});
  std::cout << "stored at " << receipt.partition << "/" << receipt.base_offset << "\n";
  for (const char* greeting : {"hej", "salut", "moin"}) producer.add(linn::Record{.value = greeting, .key = "more"});
  producer.flush();

  linn::Consumer consumer = client.consumer({.topic = "greetings", .prefetch = 100});
  while (const auto message = consumer.next(std::chrono::seconds(1))) {
    const linn::RecordView record = message->record();
    std::cout << message->offset() << ": " << record.value().value_or("(none)") << ", attempt " << message->attempt
              << "\n";
    consumer.ack(*message);
  }
  consumer.close();
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc > 1 ? argv[1] : "linn://127.0.0.1:5466");
  } catch (const linn::Error& error) {
    std::cerr << "linn-greetings: " << error.what() << "\n";
    return 1;
  }
}
