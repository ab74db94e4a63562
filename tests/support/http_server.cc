#include "support/http_server.h"

#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509v3.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#include <boost/asio/ssl/stream_base.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <condition_variable>
#include <mutex>
#include <optional>
#include <thread>

namespace inferscale::testing {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using tcp = asio::ip::tcp;

std::string ReadMemory(BIO* bio) {
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio, &data);
  return std::string(data, static_cast<std::size_t>(size));
}

}  // namespace

struct HttpServer::Impl {
  template <typename Stream>
  void Answer(Stream& stream, std::atomic<int>& requests) {
    boost::system::error_code error;
    boost::beast::flat_buffer buffer;
    http::request_parser<http::string_body> parser;
    parser.body_limit(std::size_t{64} << 20);
    http::read(stream, buffer, parser, error);
    if (error) return;
    const auto& request = parser.get();
    ++requests;
    const HttpReply reply =
        handler({std::string(request.target()), std::string(request[http::field::authorization]),
                 request.body(), std::string(request["X-data-parallel-rank"])});
    {
      std::unique_lock lock(mutex);
      wake.wait_for(lock, reply.delay, [&] { return stopping; });
    }
    if (reply.hang_up) return;
    http::response<http::string_body> response;
    response.version(11);
    response.result(static_cast<unsigned>(reply.status));
    response.set(http::field::content_type, reply.content_type);
    response.keep_alive(false);
    response.body() = reply.body;
    response.prepare_payload();
    http::write(stream, response, error);
  }

  void Serve(tcp::socket socket, std::atomic<int>& requests) {
    boost::system::error_code error;
    if (tls) {
      asio::ssl::stream<tcp::socket&> stream(socket, *tls);
      stream.handshake(asio::ssl::stream_base::server, error);
      if (!error) Answer(stream, requests);
    } else {
      Answer(socket, requests);
    }
    socket.shutdown(tcp::socket::shutdown_both, error);
  }

  Handler handler;
  asio::io_context context;
  tcp::acceptor acceptor{context, tcp::endpoint(asio::ip::make_address("127.0.0.1"), 0)};
  std::optional<asio::ssl::context> tls;
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::vector<std::thread> connections;
  std::thread accepting;
};

HttpServer::HttpServer(Handler handler, const std::string& certificate_pem,
                       const std::string& key_pem)
    : impl_(std::make_unique<Impl>()) {
  impl_->handler = std::move(handler);
  if (!certificate_pem.empty()) {
    impl_->tls.emplace(asio::ssl::context::tls_server);
    impl_->tls->use_certificate_chain(asio::buffer(certificate_pem));
    impl_->tls->use_private_key(asio::buffer(key_pem), asio::ssl::context::pem);
  }
  impl_->accepting = std::thread([this] {
    while (true) {
      boost::system::error_code error;
      tcp::socket socket = impl_->acceptor.accept(error);
      std::lock_guard lock(impl_->mutex);
      if (impl_->stopping || error) return;
      impl_->connections.emplace_back([this, socket = std::move(socket)]() mutable {
        impl_->Serve(std::move(socket), requests_);
      });
    }
  });
}

HttpServer::~HttpServer() {
  {
    std::lock_guard lock(impl_->mutex);
    impl_->stopping = true;
  }
  impl_->wake.notify_all();
  // A connection of our own ends the blocking accept.
  boost::system::error_code error;
  tcp::socket socket(impl_->context);
  socket.connect(impl_->acceptor.local_endpoint(), error);
  impl_->accepting.join();
  for (std::thread& connection : impl_->connections) connection.join();
}

std::string HttpServer::Url(const std::string& path) const {
  return (impl_->tls ? "https" : "http") + std::string("://127.0.0.1:") +
         std::to_string(impl_->acceptor.local_endpoint().port()) + path;
}

TestCertificate MakeTestCertificate() {
  EVP_PKEY* key = EVP_EC_gen("P-256");
  X509* certificate = X509_new();
  X509_set_version(certificate, 2);
  ASN1_INTEGER_set(X509_get_serialNumber(certificate), 1);
  X509_gmtime_adj(X509_getm_notBefore(certificate), -3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate), 24 * 3600);
  X509_set_pubkey(certificate, key);
  X509_NAME* name = X509_get_subject_name(certificate);
  X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>("127.0.0.1"), -1, -1, 0);
  X509_set_issuer_name(certificate, name);
  X509_EXTENSION* address =
      X509V3_EXT_conf_nid(nullptr, nullptr, NID_subject_alt_name, "IP:127.0.0.1");
  X509_add_ext(certificate, address, -1);
  X509_sign(certificate, key, EVP_sha256());

  TestCertificate made;
  BIO* bio = BIO_new(BIO_s_mem());
  PEM_write_bio_X509(bio, certificate);
  made.certificate_pem = ReadMemory(bio);
  BIO_free(bio);
  bio = BIO_new(BIO_s_mem());
  PEM_write_bio_PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr);
  made.key_pem = ReadMemory(bio);
  BIO_free(bio);
  X509_EXTENSION_free(address);
  X509_free(certificate);
  EVP_PKEY_free(key);
  return made;
}

}  // namespace inferscale::testing
