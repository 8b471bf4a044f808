#include "../transformer.hpp"

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdio>
#include <functional>

using namespace keel_test;
namespace oom = keel::oom;

namespace {

struct plain : keel::recipe<keel::checkpoint::every<keel::steps{2}>> {};
struct offloading : keel::recipe<keel::offload::optimizer, keel::checkpoint::every<keel::steps{2}>> {};
struct climbs : keel::recipe<oom::ladder<oom::offload_optimizer, oom::release_after<keel::steps{2}>, oom::give_up>> {};

at::Tensor first_moment(torch::optim::Optimizer& optimizer, at::Tensor const& parameter) {
  return static_cast<torch::optim::AdamWParamState&>(*optimizer.state()[keel::libtorch::state_key(parameter)]).exp_avg();
}

/// A directory that is not in memory.
std::filesystem::path on_disk() { return "/var/tmp"; }

/// Lowers what this process may have, for the length of a scope.
class lowered_limit {
 public:
  lowered_limit(int resource, rlim_t to) : resource_(resource) {
    ::getrlimit(resource_, &before_);
    rlimit lowered = before_;
    lowered.rlim_cur = to;
    REQUIRE(::setrlimit(resource_, &lowered) == 0);
  }
  lowered_limit(lowered_limit const&) = delete;
  lowered_limit& operator=(lowered_limit const&) = delete;
  ~lowered_limit() { ::setrlimit(resource_, &before_); }

 private:
  int resource_;
  rlimit before_{};
};

/// The descriptors of this process that lead to a file of a mapped_memory.
std::vector<std::filesystem::path> offload_descriptors() {
  std::vector<std::filesystem::path> found;
  for (auto const& one : std::filesystem::directory_iterator("/proc/self/fd")) {
    std::error_code gone;  // the iterator's descriptor
    if (std::filesystem::read_symlink(one.path(), gone).string().find("keel-offload") != std::string::npos)
      found.push_back(one.path());
  }
  return found;
}

struct stat facts_of_the_file() {
  auto const descriptors = offload_descriptors();
  REQUIRE(descriptors.size() == 1);
  struct stat facts {};
  REQUIRE(::stat(descriptors[0].c_str(), &facts) == 0);
  return facts;
}

/// The sentence of the file_error that a call throws.
// Under a limit of descriptors UndefinedBehaviorSanitizer cannot look at the exception.
[[gnu::no_sanitize("vptr")]] std::string refusal(std::function<void()> const& call) {
  try {
    call();
  } catch (keel::file_error const& thrown) {
    CHECK(thrown.id() == "E02");
    return thrown.what();
  }
  return "nothing was thrown";
}
bool contains(std::string const& text, std::string const& part) {
  CAPTURE(text);
  CHECK(text.find(part) != std::string::npos);
  return text.find(part) != std::string::npos;
}

struct wide_linear {
  wide_linear() { keel::libtorch::seed_random(at::kCPU, 3); }
  torch::nn::Linear model{1024, 1024};
};

}  // namespace

TEST_CASE("tensors in a mapped file are tensors like others, leave memory when they are released, and come back unchanged") {
  keel::memory::mapped_memory home(on_disk());
  at::Tensor const values = at::randn({300, 1000}).t();
  at::Tensor const moved = home.move_in(values);
  CHECK(home.holds(moved));
  CHECK_FALSE(home.holds(values));
  CHECK(moved.strides() == values.strides());
  CHECK(home.bytes() == 1200000);
  CHECK(same_bits(moved, values));
  moved.mul_(2.0);
  home.release(moved, 0, 1200000);
  CHECK(home.resident() < 100000);
  CHECK(same_bits(moved, values * 2.0));
  CHECK(home.resident() > 1000000);
  {
    at::Tensor const other = home.zeros(values, at::kDouble);
    CHECK(other.scalar_type() == at::kDouble);
    CHECK(home.bytes() == 3600000);
    CHECK(other.sum().item<double>() == 0.0);
  }
  CHECK(home.bytes() == 1200000);
  at::Tensor const empty = home.zeros(at::empty({0, 3}), at::kFloat);
  CHECK(empty.numel() == 0);
  CHECK(home.holds(empty));
}

TEST_CASE("three thousand tensors are offloaded where a process may open 64 files, and take one descriptor") {
  lowered_limit const files(RLIMIT_NOFILE, 64);
  keel::memory::mapped_memory home(on_disk());
  CHECK(offload_descriptors().empty());
  CHECK(home.zeros(at::empty({0}), at::kFloat).numel() == 0);
  CHECK(offload_descriptors().empty());
  std::vector<at::Tensor> tensors;
  for (int i = 0; i < 3000; ++i) {
    tensors.push_back(home.zeros(at::empty({7}), at::kFloat));
    tensors.back().fill_(i);
  }
  CHECK(offload_descriptors().size() == 1);
  CHECK(home.bytes() == 3000 * 28);
  home.release(tensors[1234], 0, 28);
  int right = 0;
  for (int i = 0; i < 3000; ++i) right += home.holds(tensors[i]) && tensors[i].eq(i).all().item<bool>() ? 1 : 0;
  CHECK(right == 3000);
}

TEST_CASE("a child process has no descriptor of the offloaded state's file") {
  keel::memory::mapped_memory home(on_disk());
  at::Tensor const values = home.zeros(at::empty({100}), at::kFloat);
  REQUIRE(offload_descriptors().size() == 1);
  std::FILE* const child = ::popen("ls -l /proc/self/fd", "r");
  REQUIRE(child != nullptr);
  std::string listed;
  for (int letter = std::fgetc(child); letter != EOF; letter = std::fgetc(child)) listed += static_cast<char>(letter);
  CHECK(::pclose(child) == 0);
  CHECK(listed.find("/proc/") != std::string::npos);
  CHECK(listed.find("keel-offload") == std::string::npos);
}

TEST_CASE("room of offloaded tensors that go away returns to the disk, and the file of a thousand of them takes that of one") {
  keel::memory::mapped_memory home(on_disk());
  at::Tensor const like = at::empty({50'000});
  at::Tensor const stays = home.zeros(like, at::kFloat).fill_(3.0);
  home.zeros(like, at::kFloat).fill_(1.0);
  auto const before = facts_of_the_file();
  for (int i = 0; i < 1000; ++i) {
    // Of two sizes, so that some of the room is cut and joined again.
    at::Tensor const one = home.zeros(i % 3 == 0 ? like.slice(0, 0, 20'000) : like, at::kFloat);
    if (i % 100 == 0) CHECK(one.eq(0.0).all().item<bool>());
    one.fill_(i);
  }
  auto const after = facts_of_the_file();
  // The file system's own list of the ranges may take a block more.
  constexpr std::int64_t list = 65'536 / 512;
  CHECK(after.st_blocks <= before.st_blocks + list);
  CHECK(after.st_size <= before.st_size);
  CHECK(stays.eq(3.0).all().item<bool>());
  {
    std::vector<at::Tensor> several;
    for (int i = 0; i < 10; ++i) several.push_back(home.zeros(like, at::kFloat).fill_(i));
    CHECK(facts_of_the_file().st_blocks * 512 > 10 * 200'000);
    // Out of their order, so that holes are joined on either side.
    for (int const i : {1, 3, 2, 8, 9, 0, 4, 6, 5, 7}) several[static_cast<std::size_t>(i)].reset();
  }
  CHECK(facts_of_the_file().st_blocks <= before.st_blocks + list);
  auto const size = facts_of_the_file().st_size;
  at::Tensor const large = home.zeros(at::empty({500'000}), at::kFloat);
  CHECK(facts_of_the_file().st_size == size);
  CHECK(large.eq(0.0).all().item<bool>());
  CHECK(stays.eq(3.0).all().item<bool>());
}

TEST_CASE("a file whose last tensor is gone takes nothing of the disk, and the next tensor is zero") {
  keel::memory::mapped_memory home(on_disk());
  home.zeros(at::empty({50'000}), at::kFloat).fill_(1.0);
  CHECK(facts_of_the_file().st_blocks == 0);
  CHECK(home.zeros(at::empty({50'000}), at::kFloat).eq(0.0).all().item<bool>());
}

TEST_CASE("offloaded tensors outlive the home that made them, and their file goes with the last one") {
  at::Tensor tensor;
  {
    keel::memory::mapped_memory home(on_disk());
    tensor = home.move_in(at::arange(5000.0));
  }
  CHECK(offload_descriptors().size() == 1);
  CHECK(same_bits(tensor, at::arange(5000.0)));
  tensor.reset();
  CHECK(offload_descriptors().empty());
}

TEST_CASE("a forked process that drops offloaded tensors, or makes some, leaves its parent's as they are") {
  keel::memory::mapped_memory home(on_disk());
  at::Tensor tensor = home.zeros(at::empty({2000}), at::kFloat);
  tensor.fill_(7.0);
  pid_t const child = ::fork();
  if (child == 0) {
    bool apart = !home.holds(tensor);
    at::Tensor const own = home.zeros(at::empty({2000}), at::kFloat);
    apart = apart && home.holds(own) && !home.holds(tensor) && own.data_ptr<float>()[0] == 0.0F;
    tensor.reset();
    ::_exit(apart ? 0 : 1);
  }
  int status = -1;
  REQUIRE(::waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  at::Tensor const next = home.zeros(at::empty({2000}), at::kFloat);
  next.fill_(1.0);
  CHECK(tensor.eq(7.0).all().item<bool>());
}

TEST_CASE("offloading that the system rejects names what it rejected and the way out, and works again afterwards") {
  keel::memory::mapped_memory home(on_disk());
  at::Tensor const like = at::empty({1'000'000});
  {
    lowered_limit const files(RLIMIT_NOFILE, 3);
    CHECK(contains(refusal([&] { home.zeros(like, at::kFloat); }), "(ulimit -n)"));
  }
  at::Tensor const stays = home.zeros(like, at::kFloat).fill_(2.0);
  auto const before = facts_of_the_file();
  {
    // Beyond it, the system would end the process.
    lowered_limit const size(RLIMIT_FSIZE, 6'000'000);
    CHECK(contains(refusal([&] { home.zeros(like, at::kFloat); }), "(ulimit -f)"));
  }
  {
    std::ifstream pages("/proc/self/statm");
    rlim_t mapped = 0;
    pages >> mapped;
    lowered_limit const space(RLIMIT_AS, mapped * static_cast<rlim_t>(::sysconf(_SC_PAGESIZE)) + (16U << 20));
    auto const words = refusal([&] { home.zeros(at::empty({16'000'000}, at::kMeta), at::kFloat); });
    CHECK(contains(words, "vm.max_map_count"));
    CHECK(contains(words, "(ulimit -v)"));
  }
  auto const words = refusal([&] { home.zeros(at::empty({1LL << 50}, at::kMeta), at::kFloat); });
  CHECK(contains(words, "disk with room"));
  CHECK(contains(words, on_disk().string()));
  CHECK(std::string(keel::memory::detail::advice(ENFILE)).find("fs.file-max") != std::string::npos);
  auto const after = facts_of_the_file();
  CHECK(after.st_blocks < before.st_blocks + 128);
  CHECK(after.st_size >= before.st_size);
  CHECK(home.zeros(like, at::kFloat).eq(0.0).all().item<bool>());
  CHECK(stays.eq(2.0).all().item<bool>());
}

TEST_CASE("offloading to a directory in memory, or to none, is rejected by name") {
  auto const id = [](std::filesystem::path const& where) {
    try {
      keel::memory::mapped_memory home(where);
    } catch (keel::file_error const& thrown) {
      CHECK(std::string(thrown.what()).find(where.string()) != std::string::npos);
      return thrown.id();
    }
    return std::string("none");
  };
  CHECK(id("/dev/shm") == "E02");
  CHECK(id("/no/such/directory") == "E02");
}

TEST_CASE("an optimizer whose state is in a file gives the bits of one in memory, holds none of it, and saves and resumes") {
  scratch_directory directory;
  keel::memory::budget budget;
  auto const train = [&](auto recipe, std::string const& name, std::int64_t stop) {
    using Recipe = decltype(recipe);
    keel::libtorch::seed_random(at::kCPU, 3);
    torch::nn::Linear model(300, 500);
    keel::adamw optimizer(model->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true));
    auto const before = budget.allocated();
    keel::trainer<Recipe> run{model, optimizer, quiet({.run_directory = directory / name})};
    run.resume();
    auto const loss = [&](at::Tensor const& x) { return model->forward(x).square().mean(); };
    for (std::int64_t i = run.updates(); i < stop; ++i) {
      at::Generator generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(i));
      run.step(at::randn({4, 300}, generator), loss);
    }
    // Beside the gradients: three moments of 600 KB a parameter, or none.
    std::int64_t const held = budget.allocated() - before - 4 * (300 * 500 + 500);
    run.save();
    return std::make_pair(copies_of(model->parameters()), held);
  };
  auto const expected = train(plain{}, "plain", 6);
  auto const found = train(offloading{}, "offloading", 6);
  CHECK(same_bits(found.first, expected.first));
  CHECK(expected.second > 1700000);
  CHECK(found.second < 100000);
  // Killed after four updates and continued.
  train(offloading{}, "resumed", 4);
  CHECK(same_bits(train(offloading{}, "resumed", 6).first, expected.first));
}

TEST_CASE("an update of offloaded state leaves none of it in memory, however far the disk reads ahead") {
  for (bool const sgd : {false, true}) {
    std::vector<at::Tensor> parameters;
    // Several blocks of a sweep each, neighbours in the file, and one that ends within a page.
    for (std::int64_t const size : {200000, 300000, 70001, 262144})
      parameters.push_back(at::ones({size}).requires_grad_());
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (sgd) {
      optimizer = std::make_unique<keel::sgd>(parameters, torch::optim::SGDOptions(0.05).momentum(0.9));
    } else {
      optimizer = std::make_unique<keel::adamw>(parameters, 0.01);
    }
    auto const home = std::make_shared<keel::memory::mapped_memory>(on_disk());
    auto& engine = dynamic_cast<keel::update_engine&>(*optimizer);
    for (int i = 0; i < 4; ++i) {
      for (at::Tensor& one : parameters) one.mutable_grad() = at::ones_like(one);
      if (i == 1) engine.move_state_to(home);
      optimizer->step();
      if (i == 0) continue;
      CAPTURE(sgd, i);
      CHECK(home->bytes() >= (sgd ? 1 : 2) * 832145 * 4);
      CHECK(home->resident() == 0);
    }
  }
}

TEST_CASE("bf16 parameters keep their fp32 copies in the file, too, and doubles and strided ones go by operators there") {
  for (at::ScalarType const type : {at::kBFloat16, at::kDouble}) {
    for (bool const sgd : {false, true}) {
      auto const train = [&](bool offload) {
        keel::libtorch::seed_random(at::kCPU, 3);
        torch::nn::Linear model(64, 32);
        model->to(type);
        std::unique_ptr<torch::optim::Optimizer> optimizer;
        if (sgd) {
          optimizer = std::make_unique<keel::sgd>(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
        } else {
          optimizer = std::make_unique<keel::adamw>(model->parameters(), 0.01);
        }
        auto& engine = dynamic_cast<keel::update_engine&>(*optimizer);
        auto const home = std::make_shared<keel::memory::mapped_memory>(on_disk());
        for (int i = 0; i < 4; ++i) {
          model->weight.mutable_grad() = at::full({64, 32}, 0.1 * (i + 1), model->weight.options()).t();
          model->bias.mutable_grad() = at::ones({32}, model->bias.options());
          if (offload && i == 1) engine.move_state_to(home);
          optimizer->step();
          if (offload && i > 0) CHECK(home->bytes() > 0);
          if (offload && i == 2) {
            engine.move_state_to(nullptr);
            CHECK(home->bytes() == 0);
            engine.move_state_to(home);
          }
        }
        return copies_of(model->parameters());
      };
      CHECK(same_bits(train(true), train(false)));
    }
  }
}

TEST_CASE("a rung that offloads moves the moments at once, and brings them back when it is given back") {
  keel::memory::budget budget;
  wide_linear with;
  keel::adamw optimizer(with.model->parameters(), 0.01);
  keel::step<climbs> step{with.model, optimizer};
  step.ladder().offload_to(on_disk());
  bool starve = false;
  std::int64_t seen = 0;
  auto const loss = [&](at::Tensor const& x) {
    seen = budget.allocated();
    if (std::exchange(starve, false)) TORCH_CHECK_WITH(OutOfMemoryError, false, "a test took the memory away");
    return with.model->forward(x).square().mean();
  };
  at::Tensor const x = at::randn({2, 1024});
  step(x, loss);
  step(x, loss);
  auto const in_memory = seen;
  starve = true;
  step(x, loss);
  CHECK(step.relief().offload);
  // Two moments of 4 MiB went before the batch ran again.
  CHECK(seen < in_memory - (7 << 20));
  CHECK(budget.allocated() > 0);
  auto const address = first_moment(optimizer, with.model->weight).data_ptr();
  step(x, loss);
  CHECK_FALSE(step.relief().offload);
  // Moved when the next window begins.
  step(x, loss);
  CHECK(first_moment(optimizer, with.model->weight).data_ptr() != address);
  CHECK(seen > in_memory - (1 << 20));
}
