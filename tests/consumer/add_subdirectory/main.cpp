#include <keel/recipe.hpp>

struct good : keel::recipe<keel::precision::fp16, keel::loss_scale::dynamic<>> {};
struct bad : keel::recipe<keel::precision::fp16> {};
static_assert(keel::valid<good>);
static_assert(!keel::valid<bad>);

int main() {}
