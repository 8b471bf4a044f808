// A second translation unit with everything in it: a definition that is not inline shows when the program is linked.
#include <keel/keel.hpp>
