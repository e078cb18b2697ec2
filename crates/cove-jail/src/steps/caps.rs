//! capabilities(7): drops all capabilities, and every way to get one back.

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};

use crate::report::{JailStep, StepContext, StepFailure};

/// Drops every capability of this process and its descendants for good.
pub(crate) fn drop_all() -> Result<(), StepFailure> {
    for number in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The kernel does not know this number, so it knows no larger one.
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            Err(error) => {
                return Err(StepFailure::new(JailStep::Capabilities, format!("drop capability {number}"), error));
            }
        }
    }
    clear_ambient_capability_set().during(JailStep::Capabilities, || "clear the ambient capabilities".into())?;
    // From here on user 0 has no special rights, and the locks keep it so.
    let locked = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(locked).during(JailStep::Capabilities, || "lock the secure bits".into())?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .during(JailStep::Capabilities, || "drop all capabilities".into())?;
    set_no_new_privs(true).during(JailStep::Capabilities, || "give up new privileges".into())
}
