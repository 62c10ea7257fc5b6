// One module and one stylesheet, as anywidget wants them: node bundle.mjs
import { build } from "esbuild";

await build({
  entryPoints: { dashboard: new URL("src/index.js", import.meta.url).pathname },
  outdir: new URL("../allranks_widgets/static", import.meta.url).pathname,
  bundle: true,
  format: "esm",
  target: "es2022",
  minify: true,
  legalComments: "inline",
  logLevel: "warning",
});
