//! capabilities(7): none, and no way to get any back.

use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, clear_ambient_capability_set,
    remove_capability_from_bounding_set, set_capabilities, set_capabilities_secure_bits, set_no_new_privs,
};

use crate::report::{During, Step, StepFailure};

pub(crate) fn drop_all() -> Result<(), StepFailure> {
    for number in 0..64 {
        match remove_capability_from_bounding_set(CapabilitySet::from_bits_retain(1 << number)) {
            Ok(()) => {}
            // The first number that this kernel does not know: there are no further ones.
            Err(rustix::io::Errno::INVAL) if number > 0 => break,
            Err(error) => {
                return Err(StepFailure::new(Step::Capabilities, format!("drop capability {number}"), error));
            }
        }
    }
    clear_ambient_capability_set().during(Step::Capabilities, || "clear the ambient capabilities".into())?;
    // User 0 is nothing special from here on, and none of this can be undone.
    let locked = CapabilitiesSecureBits::NO_ROOT
        | CapabilitiesSecureBits::NO_ROOT_LOCKED
        | CapabilitiesSecureBits::NO_SETUID_FIXUP
        | CapabilitiesSecureBits::NO_SETUID_FIXUP_LOCKED
        | CapabilitiesSecureBits::KEEP_CAPS_LOCKED
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE
        | CapabilitiesSecureBits::NO_CAP_AMBIENT_RAISE_LOCKED;
    set_capabilities_secure_bits(locked).during(Step::Capabilities, || "lock the secure bits".into())?;
    let none = CapabilitySet::empty();
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })
        .during(Step::Capabilities, || "drop all capabilities".into())?;
    set_no_new_privs(true).during(Step::Capabilities, || "give up new privileges".into())
}
