//! What `server-everything` offers beside plain calls, from code: a task, log messages, completions, and changes of
//! resources.

use super::UpstreamHome;
use crate::judges::OutsideJudges;

#[test]
fn further_features_of_a_real_server_work() {
    let Some(judges) = OutsideJudges::find("further_features_of_a_real_server_work") else { return };
    let house = UpstreamHome::new(&judges);
    let mut agent = house.serve(&[]);
    for file in ["features.py", "features.mjs", "features.sh"] {
        assert_eq!(agent.run_cell_file(file).ok().trim(), "all there", "{file}");
    }
}
