#!/bin/sh
# Makes the certificate of the servers that the table of network clients is tested with, in this folder. It is for tests
# alone: no system trusts its authority, whose key is not kept.
set -eu
cd "$(dirname "$0")"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
HOSTS="api cargo debian forbidden git npm pypi"

ec_key() { openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256 -out "$1"; }

ec_key "$work/authority.key"
openssl req -x509 -new -key "$work/authority.key" -days 36500 -subj "/CN=cove test clients" \
    -addext "basicConstraints=critical,CA:TRUE" -addext "keyUsage=critical,keyCertSign" -out authority.pem
ec_key server.key
openssl req -new -key server.key -subj "/CN=cove test servers" -out "$work/request"
{
    echo "extendedKeyUsage=serverAuth"
    echo "basicConstraints=critical,CA:FALSE"
    echo "subjectKeyIdentifier=hash"
    echo "authorityKeyIdentifier=keyid"
    printf 'subjectAltName='
    for host in $HOSTS; do printf '%sDNS:%s.test' "${comma:-}" "$host"; comma=,; done
} > "$work/extensions"
openssl x509 -req -in "$work/request" -CA authority.pem -CAkey "$work/authority.key" -CAcreateserial -days 36500 \
    -extfile "$work/extensions" -out server.pem -CAserial "$work/serial"
