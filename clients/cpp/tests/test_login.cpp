// Logins: the vectors of RFC 7677, every answer of a broker that is not to be trusted, and whole logins of a client.
#include <atomic>
#include <chrono>
#include <functional>
#include <stdexcept>
#include <string>
#include <vector>

#include <linn/linn.h>

#include "base64.h"
#include "check.h"
#include "crypto.h"
#include "login.h"
#include "scram.h"
#include "scripted_broker.h"

using namespace std::chrono_literals;
using linn::Client;
using linn::ClientOptions;
using linn::Error;
using linn::Login;
using linn::Password;
using linn::Token;
using linn::detail::base64_decode;
using linn::detail::base64_encode;
using linn::detail::begin_login;
using linn::detail::Salting;
using linn::detail::ScramClient;

namespace {

const std::string offered_scram = "SCRAM-SHA-256";

/// What an Error that `body` throws says.
std::string text_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

ClientOptions options(std::optional<Login> login) {
  ClientOptions chosen;
  chosen.backoff = 1ms;
  chosen.backoff_max = 10ms;
  chosen.log = [](const std::string&) {};
  chosen.login = std::move(login);
  return chosen;
}

// --- a scripted broker's side ---

void challenge(Peer& peer, std::uint64_t correlation, const std::vector<std::string>& mechanisms,
               const std::string& data = "") {
  peer.send(correlation, [&](wire::Frame::Builder root) {
    auto said = root.initChallenge();
    auto names = said.initMechanisms(static_cast<unsigned>(mechanisms.size()));
    for (unsigned index = 0; index < names.size(); ++index) names.set(index, mechanisms[index].c_str());
    said.setData(data.c_str());
  });
}

void welcome(Peer& peer, std::uint64_t correlation, const std::string& user, const std::string& login) {
  peer.send(correlation, [&](wire::Frame::Builder root) {
    auto said = root.initWelcome();
    said.setVersion(1);
    said.setBroker("scripted");
    said.setFrameBytesMax(64 << 20);
    said.setMessageBytesMax(64 << 20);
    said.setProducerId(256);
    said.setKeepaliveMs(20'000);
    said.setInflightMax(100);
    said.setUser(user.c_str());
    said.setLogin(login.c_str());
  });
}

struct HeardLogin {
  std::uint64_t correlation;
  std::string mechanism;
  std::string data;
};

HeardLogin hear_login(Peer& peer) {
  const linn::FrameContent content = peer.read();
  if (content.member != "authenticate") throw std::runtime_error("the client sent no login, but " + content.member);
  return {content.correlation, std::get<std::string>(content.fields.at(0).second.value),
          std::get<std::string>(content.fields.at(1).second.value)};
}

HeardLogin hear_first(Peer& peer, const std::vector<std::string>& mechanisms) {
  const linn::FrameContent hello = peer.read();
  if (hello.member != "hello") throw std::runtime_error("the first message is no hello");
  challenge(peer, hello.correlation, mechanisms);
  return hear_login(peer);
}

/// Answers a client that shows a token.
void take_token(Peer& peer, const std::string& token) {
  const HeardLogin heard = hear_first(peer, {"OAUTHBEARER"});
  if (heard.mechanism != "OAUTHBEARER" || heard.data != "n,,\1auth=Bearer " + token + "\1\1")
    throw std::runtime_error("not the token: " + heard.data);
  welcome(peer, heard.correlation, "ann", "");
}

void answer_find_offset(Peer& peer, std::int64_t offset) { peer.found(peer.read().correlation, offset); }

/// The code of what connecting to such a broker throws.
std::string connecting(std::optional<Login> login, const std::function<void(Peer&)>& script) {
  ScriptedBroker broker(script);
  return code_of([&] { Client::connect(broker.url(), options(std::move(login))); });
}

// --- without OpenSSL as well ---

void a_listener_that_requires_a_login_says_what_it_takes() {
  const auto offering = [](std::vector<std::string> mechanisms) {
    return [mechanisms = std::move(mechanisms)](Peer& peer) {
      challenge(peer, peer.read().correlation, mechanisms);
      peer.until_closed();
    };
  };
  CHECK(connecting(std::nullopt, offering({offered_scram})) == "auth.failed");
  CHECK(connecting(Token("t"), offering({offered_scram})) == "auth.failed");
  CHECK(connecting(Password("ann", "opensesame"), offering({"PLAIN", "OAUTHBEARER"})) == "auth.failed");
  const std::string text = text_of([] { begin_login(Password("ann", "opensesame"), {{"PLAIN", "OAUTHBEARER"}, ""}); });
  CHECK(text.find("takes no passwords by SCRAM; it takes PLAIN, OAUTHBEARER") != std::string::npos);
  CHECK(text.find("opensesame") == std::string::npos);
}

void a_token_is_sent_where_nobody_can_read_it() {
  const Token token([]() -> std::string { throw std::logic_error("the token was asked for"); });
  CHECK(code_of([&] { begin_login(token, {{"OAUTHBEARER"}, "", false}); }) == "auth.failed");
  CHECK(begin_login(token, {{"OAUTHBEARER"}, "", true})->mechanism() == "OAUTHBEARER");
}

void a_plain_password_is_sent_where_it_is_wanted_and_nobody_can_read_it() {
  const Login login = Password::plain("ann", "open\u00adsesame");
  const auto exchange = begin_login(login, {{offered_scram, "PLAIN"}, "", true});
  CHECK(exchange->mechanism() == "PLAIN");
  CHECK(exchange->begin() == std::string("\0ann\0open\u00adsesame", 17));
  CHECK(code_of([&] { begin_login(login, {{"PLAIN"}, "", false}); }) == "auth.failed");
  CHECK(code_of([&] { begin_login(login, {{offered_scram}, "", true}); }) == "auth.failed");
  CHECK(code_of([] { Password::plain("ann", std::string("open\0sesame", 11)); }) == "message.invalid");
}

void a_password_is_text_that_is_its_own_prepared_form() {
  for (const char* secret : {"opensesame", "with\ttab", "Stra\u00dfe", "na\u00efve \u0141\u00f3d\u017a \u20ac",
                             "\u043f\u0430\u0440\u043e\u043b\u044c", "\u03ba\u03cc\u03c3\u03bc\u03bf\u03c2"})
    CHECK(code_of([&] { Password("ann", secret); }).empty());
  // A ligature, a letter with a combining accent, a soft hyphen, a letter from right to left, and one of four bytes.
  for (const char* secret : {"\ufb01", "e\u0301", "a\u00adb", "\u05d0", "\U0001d400"})
    CHECK(code_of([&] { Password("ann", secret); }) == "message.invalid");
  CHECK(text_of([] { Password("ann", "opensesame\u00ad"); }).find("sesame") == std::string::npos);
  CHECK(code_of([] { Password("", "opensesame"); }) == "message.invalid");
  CHECK(code_of([] { Password("ann", ""); }) == "message.invalid");
  CHECK(code_of([] { Password("ann", "\xff"); }) == "message.invalid");
  CHECK(Password("ann", "opensesame").user() == "ann");
}

void a_token_is_asked_for_at_each_connection() {
  ScriptedBroker broker({[](Peer& peer) {
                           take_token(peer, "token-1");
                           peer.fail(0, "auth.failed");  // As at the end of the token.
                           peer.until_closed();
                         },
                         [](Peer& peer) {
                           challenge(peer, peer.read().correlation, {"OAUTHBEARER"});
                           peer.until_closed();
                         },
                         [](Peer& peer) {
                           take_token(peer, "token-3");
                           answer_find_offset(peer, 5);
                           peer.until_closed();
                         }});
  std::atomic<int> asked = 0;
  const Token token([&] {
    if (++asked == 2) throw Error("connection.failed", "the issuer is away", true);
    return "token-" + std::to_string(asked);
  });
  const auto client = Client::connect(broker.url(), options(token));
  CHECK(client.user() == "ann");
  CHECK(client.find_offset("t", 0, -1) == 5);
  CHECK(asked == 3);
  client.close();
  broker.finish();
}

void a_token_that_can_not_be_sent_is_not() {
  const auto connecting_with = [](Token token) {
    return [token = std::move(token)] {
      ScriptedBroker broker([](Peer& peer) {
        challenge(peer, peer.read().correlation, {"OAUTHBEARER"});
        if (peer.read_bytes()) throw std::runtime_error("a token was sent");
      });
      try {
        Client::connect(broker.url(), options(token));
      } catch (const Error&) {
        broker.finish();
        throw;
      }
    };
  };
  for (const char* text : {"", "token\n", "tok\1en", "t\u00f6"})
    CHECK(code_of(connecting_with(Token(text))) == "message.invalid");
  CHECK(text_of(connecting_with(Token("secret-token\n"))).find("secret") == std::string::npos);
  CHECK(code_of([] { Token(std::function<std::string()>()); }) == "message.invalid");
  CHECK(code_of(connecting_with(Token([]() -> std::string { throw Error("connection.failed", "x", true); }))) ==
        "connection.failed");
  const Token broken([]() -> std::string { throw std::runtime_error("the issuer is away"); });
  CHECK(code_of(connecting_with(broken)) == "auth.failed");
  CHECK(text_of(connecting_with(broken)).find("the issuer is away") != std::string::npos);
  CHECK(code_of(connecting_with(Token([]() -> std::string { throw 1; }))) == "auth.failed");
}

void a_login_ends() {
  const Token token("t");
  CHECK(connecting(token, [](Peer& peer) {
          peer.fail(hear_first(peer, {"OAUTHBEARER"}).correlation, "auth.failed");
        }) == "auth.failed");
  CHECK(connecting(token, [](Peer& peer) {
          challenge(peer, hear_first(peer, {"OAUTHBEARER"}).correlation, {}, "more");
          peer.until_closed();
        }) == "auth.failed");
  CHECK(connecting(token, [](Peer& peer) {
          peer.found(hear_first(peer, {"OAUTHBEARER"}).correlation, 1);
          peer.until_closed();
        }) == "protocol.malformed");
  CHECK(connecting(token, [](Peer& peer) {
          welcome(peer, hear_first(peer, {"OAUTHBEARER"}).correlation + 1, "ann", "");
          peer.until_closed();
        }) == "protocol.malformed");
}

/// A user that was deleted, or a password that was changed: the broker ends the connection, and refuses the next ones.
void a_refused_login_is_reported_and_not_tried_again() {
  const auto refuse = [](Peer& peer) {
    peer.fail(hear_first(peer, {"OAUTHBEARER"}).correlation, "auth.failed");
    peer.until_closed();
  };
  ScriptedBroker broker({[](Peer& peer) {
                           take_token(peer, "t");
                           peer.hear_publish();  // It is not confirmed.
                           peer.fail(0, "auth.failed");
                           peer.until_closed();
                         },
                         refuse, refuse,
                         [](Peer& peer) {
                           take_token(peer, "t");
                           answer_find_offset(peer, 7);
                           peer.until_closed();
                         }});
  const auto client = Client::connect(broker.url(), options(Token("t")));
  // It may have been stored. Sent again, it would be what the last of these brokers does not expect.
  CHECK(code_of([&] { client.producer({.topic = "t"}).publish({.value = "v"}); }) == "connection.lost");
  // Each call makes the client try once more.
  CHECK(code_of([&] { client.find_offset("t", 0, -1); }) == "auth.failed");
  CHECK(client.find_offset("t", 0, -1) == 7);
  client.close();
  broker.finish();
}

// --- SCRAM ---

#if LINN_WITH_OPENSSL

const std::string hash(32, '\x11');
const std::string rfc_nonce = "rOprNGfwEbeRWgbNEkqO";
const std::string rfc_whole_nonce = "rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0";
const std::string rfc_salt = "W22ZaJ0SNY7soEsUEjb6gQ==";

std::string salted(const std::string& secret, const Salting& salting) {
  return linn::detail::pbkdf2_sha256(secret, salting.salt, salting.iterations);
}

std::string server_first(const std::string& nonce, const std::string& salt,
                                          const std::string& iterations) {
  return "r=" + nonce + ",s=" + salt + ",i=" + iterations;
}

/// Section 3 of the RFC: user "user", password "pencil".
void the_vector_of_rfc_7677() {
  ScramClient scram("user", rfc_nonce, "", false);
  CHECK(scram.mechanism() == "SCRAM-SHA-256");
  CHECK(scram.first() == "n,,n=user,r=rOprNGfwEbeRWgbNEkqO");
  const Salting salting = scram.salting(server_first(rfc_whole_nonce, rfc_salt, "4096"));
  CHECK(salting.iterations == 4'096 && base64_encode(salting.salt) == rfc_salt);
  CHECK(scram.final(salted("pencil", salting)) ==
        "c=biws,r=" + rfc_whole_nonce + ",p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ=");
  scram.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=");
  scram.check("v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=,extension=1");
}

void only_the_proof_of_this_login_is_taken() {
  ScramClient scram("user", rfc_nonce, "", false);
  const std::string right = "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=";
  CHECK(code_of([&] { scram.check(right); }) == "auth.failed");  // Before the client's last message.
  CHECK(code_of([&] { scram.check("v="); }) == "auth.failed");
  scram.final(salted("pencil", scram.salting(server_first(rfc_whole_nonce, rfc_salt, "4096"))));
  for (const char* wrong : {"", "v=", "6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=", "e=other-error", "v=6rriTRBi",
                            "v=7rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=",
                            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G5=",
                            "v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4=AAAA"})
    CHECK(code_of([&] { scram.check(wrong); }) == "auth.failed");
  scram.check(right);
  const std::string again = server_first(rfc_whole_nonce, rfc_salt, "4096");
  CHECK(code_of([&] { scram.salting(again); }) == "auth.failed");
}

/// The code of a client with the nonce of the RFC that reads this answer.
std::string reading(const std::string& answer) {
  return code_of([&] { ScramClient("user", rfc_nonce, "", false).salting(answer); });
}

void the_nonce_is_compared_in_full_and_the_broker_adds_to_it() {
  CHECK(reading(server_first(rfc_nonce + "x", rfc_salt, "4096")).empty());
  for (const std::string& nonce : {rfc_nonce, rfc_nonce.substr(1) + "x", rfc_nonce.substr(0, 19), std::string("x"),
                                   std::string(), rfc_nonce.substr(0, 19) + "xx", "x" + rfc_nonce})
    CHECK(reading(server_first(nonce, rfc_salt, "4096")) == "auth.failed");
}

void too_few_and_too_many_iterations_are_refused() {
  for (const char* iterations : {"4096", "32768", "10000000"})
    CHECK(reading(server_first(rfc_whole_nonce, rfc_salt, iterations)).empty());
  for (const char* iterations : {"0", "1", "4095", "10000001", "2147483648", "4294971392", "18446744073709551615",
                                 "99999999999999999999", "", "-4096", "+4096", " 4096", "4096x", "0x1000", "4096.0"})
    CHECK(reading(server_first(rfc_whole_nonce, rfc_salt, iterations)) == "auth.failed");
}

void what_is_no_answer_of_scram_is_refused() {
  CHECK(reading(server_first(rfc_whole_nonce, rfc_salt, "4096") + ",x=1").empty());
  const std::string long_nonce = rfc_nonce + std::string(4'096, 'x');
  for (const std::string& answer :
       {std::string(), "r=" + rfc_whole_nonce, "m=1," + server_first(rfc_whole_nonce, rfc_salt, "4096"),
        "s=" + rfc_salt + ",r=" + rfc_whole_nonce + ",i=4096", "r=" + rfc_whole_nonce + ",i=4096,s=" + rfc_salt,
        server_first(rfc_whole_nonce, "", "4096"), server_first(rfc_whole_nonce, "W22Z=", "4096"),
        server_first(rfc_whole_nonce, "W22ZaJ0SNY7soEsUEjb6gR==", "4096"), server_first(long_nonce, rfc_salt, "4096"),
        server_first(rfc_whole_nonce + std::string(1, '\0'), rfc_salt, "4096")})
    CHECK(reading(answer) == "auth.failed");
}

void names_are_escaped_and_flags_say_what_is_bound() {
  CHECK(ScramClient("a=b,c", "N", "", false).first() == "n,,n=a=3Db=2Cc,r=N");
  CHECK(ScramClient("ann", "N", hash, false).first() == "y,,n=ann,r=N");
  ScramClient plus("ann", "N", hash, true);
  CHECK(plus.mechanism() == "SCRAM-SHA-256-PLUS");
  CHECK(plus.first() == "p=tls-server-end-point,,n=ann,r=N");
  const std::string last = plus.final(salted("x", plus.salting(server_first("Nx", rfc_salt, "4096"))));
  CHECK(last.starts_with("c=" + base64_encode("p=tls-server-end-point,," + hash) + ",r=Nx,p="));
  const Login login = Password("ann", "opensesame");
  const std::vector<std::string> both{"SCRAM-SHA-256-PLUS", "SCRAM-SHA-256"};
  CHECK(begin_login(login, {both, hash})->mechanism() == "SCRAM-SHA-256-PLUS");
  CHECK(begin_login(login, {both, ""})->mechanism() == "SCRAM-SHA-256");
  CHECK(begin_login(login, {{offered_scram}, hash})->begin().starts_with("y,,"));
  CHECK(begin_login(login, {{offered_scram}, hash})->begin() != begin_login(login, {{offered_scram}, hash})->begin());
}

void a_salted_password_is_kept_for_the_next_login() {
  std::string secret = "pencil";
  linn::detail::KeptPassword kept("user", secret);
  CHECK(secret.empty());
  const auto first = kept.salted({"salt", 4'096});
  CHECK(kept.salted({"salt", 4'096}) == first);
  CHECK(kept.salted({"other", 4'096})->bytes() == salted("pencil", {"other", 4'096}));
  CHECK(kept.salted({"other", 4'097})->bytes() == salted("pencil", {"other", 4'097}));
}

std::string digest_of(const std::string& key, const std::string& bytes) {
  return linn::detail::hmac_sha256(key, bytes);
}

/// A broker that knows the password "pencil", and may prove something else.
void serve_scram(Peer& peer, bool proves = true) {
  const HeardLogin first = hear_first(peer, {offered_scram});
  const std::string bare = first.data.substr(3), nonce = bare.substr(bare.find(",r=") + 3) + "broker";
  const std::string answer = server_first(nonce, rfc_salt, "4096");
  challenge(peer, first.correlation, {}, answer);
  const HeardLogin last = hear_login(peer);
  const std::size_t proof_at = last.data.find(",p=");
  const std::string signed_text = bare + "," + answer + "," + last.data.substr(0, proof_at);
  const std::string key = salted("pencil", {*base64_decode(rfc_salt), 4'096});
  const std::string stored_key = linn::detail::sha256(digest_of(key, "Client Key"));
  std::string client_key = *base64_decode(last.data.substr(proof_at + 3));
  const std::string signature = digest_of(stored_key, signed_text);
  for (std::size_t place = 0; place < client_key.size(); ++place)
    client_key[place] = static_cast<char>(client_key[place] ^ signature[place]);
  if (linn::detail::sha256(client_key) != stored_key) {
    peer.fail(last.correlation, "auth.failed");
    return;
  }
  const std::string proof = digest_of(digest_of(key, "Server Key"), proves ? signed_text : "another login");
  welcome(peer, last.correlation, "user", "v=" + base64_encode(proof));
}

void a_client_logs_in_and_again_after_an_outage() {
  const auto serve = [](Peer& peer) {
    serve_scram(peer);
    answer_find_offset(peer, 3);
  };
  ScriptedBroker broker({serve, serve});
  const auto client = Client::connect(broker.url(), options(Password("user", "pencil")));
  CHECK(client.user() == "user");
  CHECK(client.find_offset("t", 0, -1) == 3);
  CHECK(client.find_offset("t", 0, -1) == 3);
  broker.finish();
}

void a_wrong_password_and_a_broker_without_proof_are_refused() {
  const auto serve = [](Peer& peer) { serve_scram(peer), peer.until_closed(); };
  CHECK(connecting(Password("user", "pencil"), serve).empty());
  CHECK(connecting(Password("user", "pen"), serve) == "auth.failed");
  CHECK(connecting(Password("user", "pencil"), [](Peer& peer) {
          serve_scram(peer, false);
          peer.until_closed();
        }) == "auth.failed");
  CHECK(connecting(Password("user", "pencil"), [](Peer& peer) {
          welcome(peer, hear_first(peer, {offered_scram}).correlation, "user", "");
          peer.until_closed();
        }) == "auth.failed");
}

#else

void a_build_without_openssl_says_so() {
  const std::string text = text_of([] { begin_login(Password("ann", "opensesame"), {{offered_scram}, ""}); });
  CHECK(text.find("without OpenSSL") != std::string::npos && text.find("[auth.failed]") != std::string::npos);
}

#endif

}  // namespace

int main() {
  std::vector<Case> cases{
      {"a listener that requires a login says what it takes", a_listener_that_requires_a_login_says_what_it_takes},
      {"a password is text that is its own prepared form", a_password_is_text_that_is_its_own_prepared_form},
      {"a token is sent where nobody can read it", a_token_is_sent_where_nobody_can_read_it},
      {"a plain password is sent where it is wanted and nobody can read it",
       a_plain_password_is_sent_where_it_is_wanted_and_nobody_can_read_it},
      {"a token is asked for at each connection, and again where there was none for now",
       a_token_is_asked_for_at_each_connection},
      {"a token that can't be sent is not", a_token_that_can_not_be_sent_is_not},
      {"a login ends", a_login_ends},
      {"a refused login is reported and not tried again", a_refused_login_is_reported_and_not_tried_again}};
#if LINN_WITH_OPENSSL
  cases.insert(
      cases.end(),
      {{"the vector of RFC 7677", the_vector_of_rfc_7677},
       {"only the proof of this login is taken", only_the_proof_of_this_login_is_taken},
       {"the nonce is compared in full, and the broker adds to it",
        the_nonce_is_compared_in_full_and_the_broker_adds_to_it},
       {"too few and too many iterations are refused", too_few_and_too_many_iterations_are_refused},
       {"what is no answer of SCRAM is refused", what_is_no_answer_of_scram_is_refused},
       {"names are escaped, and flags say what is bound", names_are_escaped_and_flags_say_what_is_bound},
       {"a salted password is kept for the next login", a_salted_password_is_kept_for_the_next_login},
       {"a client logs in, and again after an outage", a_client_logs_in_and_again_after_an_outage},
       {"a wrong password, and a broker without proof, are refused",
        a_wrong_password_and_a_broker_without_proof_are_refused}});
#else
  cases.push_back({"a build without OpenSSL says so", a_build_without_openssl_says_so});
#endif
  return run(cases);
}
