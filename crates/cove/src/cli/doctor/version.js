console.log(process.versions.node);
