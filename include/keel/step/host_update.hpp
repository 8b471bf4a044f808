// An update that the host decides to apply or skip.
#pragma once

#include <keel/step/update_parts.hpp>

namespace keel::detail::inline KEEL_MODE {

class host_update final : public update_strategy {
 public:
  explicit host_update(update_parts& parts) : parts_(parts) {}
  update_decision decide() override;
  void apply(update_decision& decision) override;

 private:
  update_parts& parts_;
};

}  // namespace keel::detail::inline KEEL_MODE

#ifndef KEEL_COMPILED
#include <keel/step/host_update.ipp>
#endif
