// The collectives of Gloo over its TCP transport: gloo <socket> <largest tensor in bytes> <rank> <size> <directory>.
//
// Reductions have a variant in their name: all-reduce/ring and all-reduce/bcube are the function, all-reduce/hd is the class
// AllreduceHalvingDoubling; flag likewise. Gloo has no reduce-scatter function, only the class, which works in place.
#include <gloo/allgather.h>
#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/math.h>
#include <gloo/reduce_scatter.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "peer.h"

namespace {

struct Rank {
  std::shared_ptr<gloo::rendezvous::Context> context;
  int rank, size;
  float *full, *shard;

  void barrier() {
    gloo::BarrierOptions options(context);
    gloo::barrier(options);
  }

  std::function<void()> operation(const std::string &op, size_t count);
  std::function<void()> reduction(const std::string &how, size_t count, bool max);
  void check(const command &c);
  void run(const command &c);
};

// reduction prepares an all-reduce of count elements of full.
std::function<void()> Rank::reduction(const std::string &how, size_t count, bool max) {
  if (how == "hd") {
    auto op = std::make_shared<gloo::AllreduceHalvingDoubling<float>>(
        context, std::vector<float *>{full}, static_cast<int>(count),
        max ? gloo::ReductionFunction<float>::max : gloo::ReductionFunction<float>::sum);
    return [op] { op->run(); };
  }
  auto options = std::make_shared<gloo::AllreduceOptions>(context);
  using Algorithm = gloo::AllreduceOptions::Algorithm;
  options->setAlgorithm(how == "bcube" ? Algorithm::BCUBE : Algorithm::RING);
  options->setOutput(full, count);
  using Reduce = void (*)(void *, const void *, const void *, size_t);
  options->setReduceFunction(max ? static_cast<Reduce>(&gloo::max<float>) : static_cast<Reduce>(&gloo::sum<float>));
  return [options] { gloo::allreduce(*options); };
}

// operation prepares one collective, whose buffers are bound once as the library would have it.
std::function<void()> Rank::operation(const std::string &op, size_t count) {
  if (op == "barrier") {
    auto options = std::make_shared<gloo::BarrierOptions>(context);
    return [options] { gloo::barrier(*options); };
  }
  if (op == "all-gather") {
    auto options = std::make_shared<gloo::AllgatherOptions>(context);
    options->setInput(shard, count / size);
    options->setOutput(full, count);
    return [options] { gloo::allgather(*options); };
  }
  if (op == "broadcast") {
    auto options = std::make_shared<gloo::BroadcastOptions>(context);
    options->setOutput(full, count);
    options->setRoot(0);
    return [options] { gloo::broadcast(*options); };
  }
  if (op == "reduce-scatter") {
    auto algorithm = std::make_shared<gloo::ReduceScatterHalvingDoubling<float>>(
        context, std::vector<float *>{full}, static_cast<int>(count),
        std::vector<int>(size, static_cast<int>(count / size)));
    return [algorithm] { algorithm->run(); };
  }
  auto slash = op.find('/');
  if (slash == std::string::npos) throw std::invalid_argument("no such operation");
  bool flag = op.substr(0, slash) == "flag";
  return reduction(op.substr(slash + 1), flag ? 1 : count, flag);
}

// check runs one collective on the test pattern and looks at the result.
void Rank::check(const command &c) {
  std::string op(c.op);
  op = op.substr(0, op.find('/'));
  size_t m = c.count / size, first = m * rank;
  float sum = static_cast<float>(size * (size + 1) / 2);
  peer_fill(full, 0, c.count, static_cast<float>(rank + 1));
  peer_fill(shard, first, m, 1);
  auto collective = operation(c.op, c.count);
  barrier();
  collective();
  barrier();  // the classes return with sends in flight, from the buffer that is read now
  bool right = true;
  if (op == "flag")
    right = peer_verify(full, 0, 1, static_cast<float>(size));
  else if (op == "all-gather" || op == "broadcast")
    right = peer_verify(full, 0, c.count, 1);
  else if (op == "all-reduce")
    right = peer_verify(full, 0, c.count, sum);
  else if (op == "reduce-scatter")
    right = peer_verify(full, first, m, sum);
  if (right) peer_ok(0);
}

void Rank::run(const command &c) {
  auto collective = operation(c.op, c.count);
  barrier();
  collective();  // first touch of what it has allocated
  barrier();
  double start = peer_now();
  for (long i = 0; i < c.iterations; i++) collective();
  double seconds = peer_now() - start;
  barrier();  // nobody destroys buffers that a peer still sends to
  peer_ok(seconds);
}

}  // namespace

int main(int argc, char **argv) try {
  if (argc != 6) {
    fprintf(stderr, "usage: %s socket bytes rank size directory\n", argv[0]);
    return 2;
  }
  size_t bytes = strtoul(argv[2], nullptr, 10);
  Rank r{};
  r.rank = atoi(argv[3]);
  r.size = atoi(argv[4]);
  r.full = peer_buffer(bytes);
  r.shard = peer_buffer(bytes / r.size);
  auto device = gloo::transport::tcp::CreateDevice("127.0.0.1");
  gloo::rendezvous::FileStore store(argv[5]);
  r.context = std::make_shared<gloo::rendezvous::Context>(r.rank, r.size);
  r.context->setTimeout(std::chrono::seconds(60));
  r.context->connectFullMesh(store, device);
  peer_connect(argv[1], r.rank);
  command c;
  while (peer_next(&c)) {
    if (c.check)
      r.check(c);
    else
      r.run(c);
  }
  return 0;
} catch (const std::exception &e) {
  fprintf(stderr, "gloo: %s\n", e.what());
  return 1;
}
