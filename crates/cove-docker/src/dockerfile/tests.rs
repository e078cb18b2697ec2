//! What the parser finds in Dockerfiles, including ones that hide an image reference.

use super::*;

#[track_caller]
fn check(text: &str, images: &[&str], unclear: &[&str]) {
    let given = BuildArguments::from([("GIVEN".to_owned(), "9".to_owned())]);
    let needs = DockerfileNeeds::parse(text, &given);
    assert_eq!((names(&needs), needs.unresolved), (owned(images), owned(unclear)), "{text}");
}

/// Returns the image names without duplicates, with the platform if one is requested.
fn names(needs: &DockerfileNeeds) -> Vec<String> {
    let mut all = Vec::new();
    for image in &needs.images {
        let name = match &image.platform {
            None => image.name.clone(),
            Some(ImagePlatform::Native) => format!("{} native", image.name),
            Some(ImagePlatform::Named(platform)) => format!("{} {platform}", image.name),
        };
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

#[test]
fn distinguishes_images_from_stages() {
    check("FROM ubuntu:24.04\nRUN true\n", &["ubuntu:24.04"], &[]);
    check(
        "# FROM no\nfrom --platform=linux/amd64 a:1 as Build\nFROM build\nCOPY --from=Build /x /x\n",
        &["a:1 linux/amd64"],
        &[],
    );
    check(
        "FROM scratch\nCOPY --from=busybox:1 /bin /bin\nFROM scratch\nCOPY --chown=1 --from=0 /a /a\nCOPY x --from=y /\n",
        &["busybox:1"],
        &[],
    );
    check("FROM a AS B\nFROM c\nCOPY --from=b /x /x\nADD --from=d /x /x\n", &["a", "c", "d"], &[]);
    check("FROM a\nRUN --mount=type=bind,from=\"other\",target=/x true\n", &["a", "other"], &[]);
    check("RUN echo FROM nothing\n", &[], &[]);
    check("", &[], &[]);
}

#[test]
fn expands_variables_in_image_names() {
    check(
        "ARG TAG=3.13 FLAVOUR\nARG BASE=\"python:$TAG\"\nFROM ${BASE}${FLAVOUR:+-x}-slim\n",
        &["python:3.13-slim"],
        &[],
    );
    check("ARG GIVEN=1\nFROM a:$GIVEN\n", &["a:9"], &[]);
    check("ARG GIVEN\nFROM a:${GIVEN}\n", &["a:9"], &[]);
    // A build argument without an `ARG` line has no effect.
    check("FROM a:$GIVEN\n", &[], &["a:$GIVEN"]);
    check("ARG X\nFROM ${X:-debian}:12\nFROM $X\n", &["debian:12"], &["$X"]);
    check("FROM a\nCOPY --from=$X /x /x\nFROM ${X\nFROM\n", &["a"], &["$X", "${X"]);
}

#[test]
fn joins_continued_dockerfile_lines() {
    check("FROM \\\n# between\n  a:1 \\\r\n  AS x\r\nFROM a:1\n", &["a:1"], &[]);
    check("# syntax=docker/dockerfile:1\n# escape=`\nFROM `\n  a:1\n", &["a:1"], &[]);
}

#[test]
fn finds_disguised_image_references() {
    check("FROM a\nCOPY --fr\\\nom=evil/x / /\n", &["a", "evil/x"], &[]);
    check("FROM a\nCOPY --fr\"om=evil/x\" / /\nCOPY --fr\\om=evil/y / /\n", &["a", "evil/x", "evil/y"], &[]);
    check("FROM a\nRUN --mount=type=bind,\"from=evil/x\" true\n", &["a", "evil/x"], &[]);
    check("\u{feff}FROM evil/x\n", &["evil/x"], &[]);
    // An `ARG` inside a stage, which only some builders expand here.
    check("ARG X=a\nFROM a\nARG X=evil/x\nCOPY --from=$X / /\n", &["a"], &["$X"]);
    // Some builders read this as one line, others as two.
    check("FROM a\nRUN x \\\\\nCOPY --from=a / /\n", &["a"], &["RUN x \\\\"]);
    check("ARG TARGETARCH=x\nFROM a-$TARGETARCH\nFROM ${TARGETARCH:-a}\n", &[], &["a-$TARGETARCH", "${TARGETARCH:-a}"]);
    check("FROM a\\b\n", &[], &["a\\b"]);
}

#[test]
fn normalises_platforms_or_reports_them() {
    check("FROM --platform=linux/aarch64/v8 a\n", &["a linux/arm64"], &[]);
    check("ARG P=linux/arm/v6\nFROM --platform=\"$P\" a\n", &["a linux/arm/v6"], &[]);
    check("FROM --platform=$BUILDPLATFORM a\nFROM --platform=${TARGETPLATFORM} a\n", &["a native"], &[]);
    check("ARG BUILDPLATFORM\nFROM --platform=$BUILDPLATFORM a\n", &["a native"], &[]);
    let unclear = ["--platform=$BUILDPLATFORM"];
    check("ARG BUILDPLATFORM=linux/arm64\nFROM --platform=$BUILDPLATFORM a\n", &[], &unclear);
    check("FROM --platform=arm64 a\nFROM --platform=$X b\n", &[], &["--platform=arm64", "--platform=$X"]);
    check("FROM --plat\"form=linux/arm64\" a\n", &["a linux/arm64"], &[]);
    // An earlier stage already has its platform.
    check("FROM a AS x\nFROM --platform=linux/arm64 x\n", &["a"], &[]);
    assert_eq!(ImagePlatform::from_parts("linux", "amd64", ""), ImagePlatform::from_parts("Linux", "x86_64", "v1"));
    assert_ne!(ImagePlatform::from_parts("linux", "arm", "v6"), ImagePlatform::from_parts("linux", "arm", ""));
}

#[test]
fn triggers_apply_to_stages_that_start_from_the_image() {
    check("FROM a AS x\nONBUILD COPY --from=evil/x / /\n", &["a"], &[]);
    check("FROM a AS x\nONBUILD copy --from=evil/x / /\nFROM x\n", &["a", "evil/x"], &[]);
    check("FROM a AS x\nONBUILD COPY --from=evil/x / /\nFROM \"X\"\n", &["a", "evil/x"], &[]);
    check("ARG S=x\nFROM a AS x\nONBUILD COPY --from=evil/x / /\nFROM $S\n", &["a", "evil/x"], &[]);
    let needs = DockerfileNeeds::parse("FROM b AS build\nFROM a\n", &BuildArguments::new());
    let found = |triggers: &[&str]| needs.needs_of_triggers(&needs.images[1], &owned(triggers));
    let more = found(&["COPY --from=build / /", "RUN true", "add --from=evil/x:1 / /"]);
    assert_eq!(names(&more), ["evil/x:1"]);
    assert_eq!(found(&["FROM evil/x", "COPY --from=$X / /"]).unresolved, ["FROM evil/x", "$X"]);
    let wrong = found(&["COPY --from=1 / /"]).problems;
    assert_eq!(wrong, ["`ONBUILD` of `a` copies from stage 1, and the only one before it is 0"]);
    // An image that is only copied from runs no triggers.
    let copied = DockerfileNeeds::parse("FROM a\nCOPY --from=b / /\n", &BuildArguments::new());
    assert_eq!(copied.needs_of_triggers(&copied.images[1], &owned(&["COPY --from=evil/x / /"])).images, []);
}

#[test]
fn reports_missing_stages_with_their_line() {
    let wrong = |text: &str| DockerfileNeeds::parse(text, &BuildArguments::new()).problems;
    assert_eq!(
        wrong("FROM a\n\nCOPY --chown=1 \\\n  --from=0 / /\n"),
        ["line 3 of its Dockerfile copies from stage 0, and there is none before it"]
    );
    assert_eq!(
        wrong("FROM a\nFROM b\nCOPY --from=\"7\" / /\n"),
        ["line 3 of its Dockerfile copies from stage 7, and the only one before it is 0"]
    );
    assert_eq!(
        wrong("FROM a AS x\nONBUILD ADD --from=3 / /\nFROM c\nFROM x\nRUN --mount=from=1 true\n"),
        ["line 4 of its Dockerfile copies from stage 3, and the last one before it is 1"]
    );
}

/// Every stage runs the triggers of the one before it, so a few kilobytes could stand for millions of lines.
#[test]
fn stages_and_triggers_are_bounded() {
    let problem = |text: &str| DockerfileNeeds::parse(text, &BuildArguments::new()).problems.first().cloned();
    let triggers = "ONBUILD COPY --from=$x a b\n".repeat(400);
    assert_eq!(problem(&format!("FROM a AS x\n{triggers}{}", "FROM x\n".repeat(5))), None);
    let most = format!("FROM a AS x\n{triggers}{}", "FROM x\n".repeat(400));
    assert_eq!(
        problem(&most).as_deref(),
        Some("line 414 of its Dockerfile brings the lines of `ONBUILD` to more than 5000")
    );
    let stages = "FROM a\n".repeat(501);
    assert_eq!(problem(&stages).as_deref(), Some("its Dockerfile has more than 500 stages"));
}
