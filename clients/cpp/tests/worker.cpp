// A worker and a publisher with the client's defaults, for tests with a real broker.
//
//     linn-test-worker URL work TOPIC JOB_MS   print "ready", and "begin VALUE ATTEMPT" and "done ..." for each job
//     linn-test-worker URL publish TOPIC       publish the lines of standard input, and print each when it is stored
#include <chrono>
#include <iostream>
#include <string>
#include <thread>

#include <linn/linn.h>

namespace {

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

void publish(const linn::Client& client, const std::string& topic) {
  linn::Producer producer = client.producer({.topic = topic});
  for (std::string line; std::getline(std::cin, line);) {
    producer.publish({.value = line});
    std::cout << line << std::endl;
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const linn::Client client = linn::Client::connect(argv[1]);
    if (argc == 5)
      work(client, argv[3], std::chrono::milliseconds(std::stoi(argv[4])));
    else
      publish(client, argv[3]);
  } catch (const linn::Error& error) {
    std::cerr << error.what() << "\n";
    return 1;
  }
}
