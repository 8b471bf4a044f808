// Compiled definitions of preflight and other checks that train the program's model.
#include <keel/libtorch/ivalue_first.hpp>

#include <keel/diagnose/compare_runs.ipp>
#include <keel/diagnose/loss_watch.ipp>
#include <keel/diagnose/machine_check.ipp>
#include <keel/diagnose/preflight.ipp>
#include <keel/diagnose/preflight_loss.ipp>
#include <keel/diagnose/preflight_passes.ipp>
#include <keel/diagnose/preflight_rehearsal.ipp>
#include <keel/diagnose/preflight_sequence.ipp>
#include <keel/diagnose/preflight_training.ipp>
#include <keel/diagnose/preflight_wiring.ipp>
#include <keel/libtorch/ivalue_first.hpp>
