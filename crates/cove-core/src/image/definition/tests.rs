//! The keys of `image.toml`, and the messages for mistakes.

use super::*;
use crate::image::ImageSet;

fn parts(toml: &str) -> ImageFolderParts<'_> {
    ImageFolderParts {
        name: "x",
        toml: Some(toml),
        has_dockerfile: true,
        compose: None,
        place: ImagePlace::Folder("/images/x".into()),
        origin: ImageOrigin::Folder,
    }
}

#[test]
fn every_key_is_read() {
    let text = "description = \"numbers\"\nlanguages = [\"Python\", \"sh\", \"py\"]\noneshot = false\n\
                warm = 64\npreload = [\"numpy\", \"os.path\", \"numpy\"]\n\
                [limits]\nmemory = \"1g\"\ncpus = 0.5\npids = 64\nworkspace = \"1m\"\ntmp = 65536\n";
    let read = image(&parts(text)).unwrap();
    assert_eq!(read.description, "numbers");
    assert_eq!(read.languages(), [Language::Python, Language::Sh]);
    assert_eq!((read.line_language, read.lifetime), (Language::Python, SessionLifetime::Persistent));
    assert_eq!(read.recipe.source, ImageSource::Folder("/images/x".into()));
    let limits = ImageLimits {
        memory: Some(1 << 30),
        cpus: Some(0.5),
        pids: Some(64),
        workspace: Some(1 << 20),
        tmp: Some(65536),
    };
    assert_eq!(read.limits, limits);
    let preload = Some(vec!["numpy".to_owned(), "os.path".to_owned()]);
    assert_eq!(read.readiness, ImageReadiness { warm: Some(WarmTarget::Fixed(64)), preload });
    let read = image(&parts("warm = \"auto\"\npreload = []\n")).unwrap();
    assert_eq!(read.readiness, ImageReadiness { warm: Some(WarmTarget::Adapted), preload: Some(Vec::new()) });
}

#[test]
fn what_is_not_said_has_a_default() {
    let read = image(&parts("")).unwrap();
    assert_eq!((read.lifetime, read.line_language), (SessionLifetime::Oneshot, Language::Sh));
    assert!(read.languages().is_empty() && read.limits.is_empty());
    assert_eq!(read.readiness, ImageReadiness::default());
    assert_eq!(read.description, "each call is a new program");
    let composed = ImageFolderParts { compose: Some("compose.yaml"), toml: None, ..parts("") };
    let read = image(&composed).unwrap();
    assert_eq!(read.lifetime, SessionLifetime::Persistent);
    assert_eq!(read.recipe.source, ImageSource::Compose { folder: "/images/x".into(), main: None });
    let named = ImageFolderParts { has_dockerfile: false, ..parts("image = \"python:3.13-slim\"") };
    let read = image(&named).unwrap();
    assert_eq!(read.recipe.source, ImageSource::Reference("python:3.13-slim".into()));
    assert_eq!(read.lifetime, SessionLifetime::Oneshot);
}

/// Each case: the text, what the problem says, and what the hint says.
#[test]
fn mistakes_are_told_with_their_line_and_what_would_be_right() {
    let many = format!("preload = {:?}", (0..33).map(|n| format!("m{n}")).collect::<Vec<_>>());
    let cases = [
        (
            "\ndescripton = \"x\"",
            "could not read `descripton` in `x/image.toml`, line 2: it is not a key",
            "did you mean `description`?",
        ),
        ("colour = 1", "it is not a key of `image.toml`", "known keys are `description`, `languages`"),
        ("network = \"host\"", "an image does not choose its network", "`--network` holds for all"),
        (
            "oneshot = \"yes\"",
            "could not read `oneshot = \"yes\"` in `x/image.toml`, line 1: it is neither",
            "`true` or `false`",
        ),
        ("oneshot", "could not read `x/image.toml`, line 1:", "the file is TOML"),
        ("languages = \"python\"", "it is not a list", "such as"),
        ("languages = [\"perl\"]", "`perl` is not supported", "python, node, bash and sh"),
        ("languages = [1]", "it cannot be a number", "a string in quotes"),
        ("description = \"a\\nb\"", "it is not a valid description", "one line"),
        ("description = \"\"", "it is not a valid description", "one line"),
        ("main = \"app\"", "there is no Compose file", "leave `main` out"),
        ("image = \"python:3\"", "could not choose between `image` in `x/image.toml` and `x/Dockerfile`", "remove one"),
        (
            "warm = 65",
            "could not read `warm = 65` in `x/image.toml`, line 1: `65` is more sessions than Cove keeps ready",
            "write a number from 0 to 64, or `\"auto\"`",
        ),
        ("warm = -1", "`-1` is not a number of sessions", "from 0 to 64"),
        ("warm = 99999999999", "is not a number of sessions", "from 0 to 64"),
        ("warm = \"many\"", "`many` is not a number of sessions", "from 0 to 64"),
        ("warm = true", "it cannot be a boolean", "from 0 to 64"),
        ("preload = \"numpy\"", "it is not a list", "`[\"numpy\", \"os.path\"]`"),
        ("preload = [1]", "it cannot be a number", "a string in quotes"),
        ("preload = [\"os\", \"../etc\"]", "`../etc` is not the name of a Python module", "such as `numpy`"),
        (&many, "it has 33 modules", "name at most 32"),
        ("preloads = []", "it is not a key of `image.toml`", "did you mean `preload`?"),
        ("limits = 1", "it is not a table", "[limits]"),
        (
            "[limits]\nmemroy = \"1g\"",
            "could not read `memroy` in `x/image.toml`, line 2: it is not a limit",
            "did you mean `memory`?",
        ),
        ("[limits]\npids-limit = 3", "it is not a limit", "did you mean `pids`?"),
        (
            "[limits]\nmemory = \"1k\"",
            "could not read `memory = \"1k\"` in `x/image.toml`, line 2: `1k` is too small",
            "16m",
        ),
        ("[limits]\ncpus = true", "it cannot be a boolean", "like the flag"),
    ];
    for (text, problem, hint) in cases {
        let mut set = ImageSet::default();
        set.add("x", image(&parts(text)));
        let refused = &set.problems[0];
        assert!(refused.problem.contains(problem), "`{text}`: {refused:?}");
        assert!(refused.hint.contains(hint), "`{text}`: {refused:?}");
        assert_eq!(refused.name, "x");
    }
    let composed = ImageFolderParts { compose: Some("compose.yml"), ..parts("oneshot = true") };
    assert!(image(&composed).unwrap_err().cause.contains("the containers of a Compose file stay"));
    let empty = ImageFolderParts { has_dockerfile: false, ..parts("") };
    assert!(image(&empty).unwrap_err().cause.contains("it has no Dockerfile"));
}

#[test]
fn references_are_exact() {
    let digest = "a".repeat(64);
    for good in [
        "python:3.13-slim",
        "registry.example:5000/team/tools:1",
        "Registry.example/tools:V1",
        &format!("python@sha256:{digest}"),
        &format!("sha256:{digest}"),
    ] {
        assert_eq!(reference(good).as_deref(), Ok(good));
    }
    for bad in [
        "python",
        "registry.example:5000/tools",
        "python:",
        "-x:1",
        "a b:1",
        "",
        "python@sha256:12",
        "a@b:1",
        "x:$(id)",
        "Ubuntu:24.04",
        "registry.example:5000/Team/tools:1",
    ] {
        assert!(reference(bad).is_err(), "`{bad}`");
    }
}
