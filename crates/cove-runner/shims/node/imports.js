shim.rewrite = (c) => c;
