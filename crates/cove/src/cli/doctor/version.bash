printf "%s\n" "$BASH_VERSION"
