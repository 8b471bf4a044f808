// Prints the guide as a page.
#include <cstdio>
#include <keel/diagnose/explain.hpp>

int main() { std::fputs(keel::guide_page().c_str(), stdout); }
