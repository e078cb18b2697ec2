//! What is read from a Dockerfile, also from one that hides it.

use super::*;

#[track_caller]
fn check(text: &str, images: &[&str], unclear: &[&str]) {
    let given = Arguments::from([("GIVEN".to_owned(), "9".to_owned())]);
    let needs = Needs::of(text, &given);
    assert_eq!((names(&needs), needs.unclear), (owned(images), owned(unclear)), "{text}");
}

/// With the platform where one is asked for; each once.
fn names(needs: &Needs) -> Vec<String> {
    let mut all = Vec::new();
    for image in &needs.images {
        let name = match &image.platform {
            None => image.name.clone(),
            Some(Platform::Native) => format!("{} native", image.name),
            Some(Platform::Named(platform)) => format!("{} {platform}", image.name),
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
fn images_are_told_from_stages() {
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
fn names_are_filled_in() {
    check(
        "ARG TAG=3.13 FLAVOUR\nARG BASE=\"python:$TAG\"\nFROM ${BASE}${FLAVOUR:+-x}-slim\n",
        &["python:3.13-slim"],
        &[],
    );
    check("ARG GIVEN=1\nFROM a:$GIVEN\n", &["a:9"], &[]);
    check("ARG GIVEN\nFROM a:${GIVEN}\n", &["a:9"], &[]);
    // Nobody is told of a value that the text does not ask for.
    check("FROM a:$GIVEN\n", &[], &["a:$GIVEN"]);
    check("ARG X\nFROM ${X:-debian}:12\nFROM $X\n", &["debian:12"], &["$X"]);
    check("FROM a\nCOPY --from=$X /x /x\nFROM ${X\nFROM\n", &["a"], &["$X", "${X"]);
}

#[test]
fn lines_are_joined_as_the_text_says() {
    check("FROM \\\n# between\n  a:1 \\\r\n  AS x\r\nFROM a:1\n", &["a:1"], &[]);
    check("# syntax=docker/dockerfile:1\n# escape=`\nFROM `\n  a:1\n", &["a:1"], &[]);
}

#[test]
fn what_is_asked_for_in_disguise_is_seen() {
    check("FROM a\nCOPY --fr\\\nom=evil/x / /\n", &["a", "evil/x"], &[]);
    check("FROM a\nCOPY --fr\"om=evil/x\" / /\nCOPY --fr\\om=evil/y / /\n", &["a", "evil/x", "evil/y"], &[]);
    check("FROM a\nRUN --mount=type=bind,\"from=evil/x\" true\n", &["a", "evil/x"], &[]);
    check("\u{feff}FROM evil/x\n", &["evil/x"], &[]);
    // A value of the stage's own, which only some builders take.
    check("ARG X=a\nFROM a\nARG X=evil/x\nCOPY --from=$X / /\n", &["a"], &["$X"]);
    // Which builders read as one line or as two.
    check("FROM a\nRUN x \\\\\nCOPY --from=a / /\n", &["a"], &["RUN x \\\\"]);
    check(
        "ARG TARGETARCH=x\nFROM a-$TARGETARCH\nFROM ${TARGETARCH:-a}\n",
        &[],
        &["a-$TARGETARCH", "${TARGETARCH:-a}"],
    );
    check("FROM a\\b\n", &[], &["a\\b"]);
}

#[test]
fn platforms_are_read_in_every_form_or_unclear() {
    check("FROM --platform=linux/aarch64/v8 a\n", &["a linux/arm64"], &[]);
    check("ARG P=linux/arm/v6\nFROM --platform=\"$P\" a\n", &["a linux/arm/v6"], &[]);
    check("FROM --platform=$BUILDPLATFORM a\nFROM --platform=${TARGETPLATFORM} a\n", &["a native"], &[]);
    check("ARG BUILDPLATFORM\nFROM --platform=$BUILDPLATFORM a\n", &["a native"], &[]);
    let unclear = ["--platform=$BUILDPLATFORM"];
    check("ARG BUILDPLATFORM=linux/arm64\nFROM --platform=$BUILDPLATFORM a\n", &[], &unclear);
    check("FROM --platform=arm64 a\nFROM --platform=$X b\n", &[], &["--platform=arm64", "--platform=$X"]);
    check("FROM --plat\"form=linux/arm64\" a\n", &["a linux/arm64"], &[]);
    // A stage has a platform already.
    check("FROM a AS x\nFROM --platform=linux/arm64 x\n", &["a"], &[]);
    assert_eq!(Platform::named("linux", "amd64", ""), Platform::named("Linux", "x86_64", "v1"));
    assert_ne!(Platform::named("linux", "arm", "v6"), Platform::named("linux", "arm", ""));
}

#[test]
fn triggers_count_where_something_begins_with_them() {
    check("FROM a AS x\nONBUILD COPY --from=evil/x / /\n", &["a"], &[]);
    check("FROM a AS x\nONBUILD copy --from=evil/x / /\nFROM x\n", &["a", "evil/x"], &[]);
    check("FROM a AS x\nONBUILD COPY --from=evil/x / /\nFROM \"X\"\n", &["a", "evil/x"], &[]);
    check("ARG S=x\nFROM a AS x\nONBUILD COPY --from=evil/x / /\nFROM $S\n", &["a", "evil/x"], &[]);
    let needs = Needs::of("FROM b AS build\nFROM a\n", &Arguments::new());
    let found = |triggers: &[&str]| needs.triggered(&needs.images[1], &owned(triggers));
    let more = found(&["COPY --from=build / /", "RUN true", "add --from=evil/x:1 / /"]);
    assert_eq!(names(&more), ["evil/x:1"]);
    assert_eq!(found(&["FROM evil/x", "COPY --from=$X / /"]).unclear, ["FROM evil/x", "$X"]);
    let wrong = found(&["COPY --from=1 / /"]).wrong;
    assert_eq!(wrong, ["`ONBUILD` of `a` copies from stage 1, and the only one before it is 0"]);
    // Whatever is only copied from triggers nothing.
    let copied = Needs::of("FROM a\nCOPY --from=b / /\n", &Arguments::new());
    assert_eq!(copied.triggered(&copied.images[1], &owned(&["COPY --from=evil/x / /"])).images, []);
}

#[test]
fn stages_that_are_not_there_are_told_with_their_line() {
    let wrong = |text: &str| Needs::of(text, &Arguments::new()).wrong;
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
