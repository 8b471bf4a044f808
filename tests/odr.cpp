// All of keel in one file, which must compile without a warning.
#include <keel/keel.hpp>
