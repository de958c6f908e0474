// Notes in a file that a test file has called process.exit: the results of its tests are lost then, and Node takes the file for passed.
if (process.env.NODE_TEST_CONTEXT?.startsWith('child')) {
  const { exit } = process;
  process.exit = (...code) => {
    if (process.moduleLoadList.some((name) => name.includes('internal/test_runner/harness'))) {
      require('node:fs').appendFileSync(require('node:path').join(__dirname, 'exits'), process.argv[1] + '\n');
    }
    return exit.apply(process, code);
  };
}
