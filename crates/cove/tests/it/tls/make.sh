#!/bin/sh
# Makes the certificates of the TLS tests, in this folder. They are for tests alone: no system trusts their authority, and
# its key is not kept.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
DAYS=36500

ec_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

# authority NAME KEY
authority() {
    ec_key "$2"
    openssl req -x509 -new -key "$2" -days $DAYS -subj "/CN=cove test $1" \
        -addext "keyUsage=critical,keyCertSign" -out "$1.pem"
}

# leaf NAME KEY SUBJECT_ALTERNATIVE_NAMES FROM TO
leaf() {
    printf 'subjectAltName=%s\nextendedKeyUsage=serverAuth\nbasicConstraints=critical,CA:FALSE\n' "$3" > "$work/ext"
    openssl req -new -key "$2" -subj "/CN=cove test $1" -out "$work/csr"
    : > "$work/index"
    printf '[ca]\ndefault_ca=d\n[d]\ndatabase=%s/index\nnew_certs_dir=%s\nrand_serial=yes\ndefault_md=sha256\npolicy=p\n[p]\ncommonName=supplied\n' \
        "$work" "$work" > "$work/conf"
    openssl ca -batch -notext -config "$work/conf" -in "$work/csr" -cert authority.pem -keyfile "$work/authority.key" \
        -startdate "$4" -enddate "$5" -extfile "$work/ext" -out "$1.pem" 2> "$work/log" || { cat "$work/log"; exit 1; }
}

authority authority "$work/authority.key"
authority stranger "$work/stranger.key"
ec_key ecdsa.key
openssl genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out rsa.key
leaf ecdsa ecdsa.key DNS:localhost,IP:127.0.0.1 20200101000000Z 21200101000000Z
leaf rsa rsa.key DNS:localhost,IP:127.0.0.1 20200101000000Z 21200101000000Z
leaf other-name ecdsa.key DNS:elsewhere.example 20200101000000Z 21200101000000Z
leaf expired ecdsa.key DNS:localhost,IP:127.0.0.1 20200101000000Z 20210101000000Z
