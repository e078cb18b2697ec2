// Sums up tables that it reads through one server, and stores the sums through two others.
const found = await mcp.find("search for files that match a pattern");
if (!found.some(({ server, tool }) => server === "filesystem" && tool === "search_files")) throw new Error(`${found}`);

const totals = new Map();
const paths = (await mcp.filesystem.search_files({ path: "@HOUSE@/files", pattern: "*.csv" })).split("\n");
const texts = await Promise.all(paths.map((path) => mcp.filesystem.read_text_file({ path })));
for (const line of texts.flatMap((text) => text.trim().split("\n").slice(1))) {
  const [name, amount] = line.split(",");
  totals.set(name, (totals.get(name) ?? 0) + Number(amount));
}

await mcp.memory.create_entities({
  entities: [...totals].map(([name, total]) => ({ name, entityType: "customer", observations: [`total ${total}`] })),
});
await mcp.sqlite.create_table({ query: "create table totals (name text, amount integer)" });
for (const [name, total] of totals) {
  await mcp.sqlite.write_query({ query: `insert into totals values ('${name}', ${total})` });
}
console.log("stored", totals.size);
