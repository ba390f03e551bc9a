import tseslint from 'typescript-eslint';

/** Type-aware: a promise nobody waits for, an `any` that spreads and code nobody uses are the faults that types alone let pass. */
export default tseslint.config(
  { ignores: ['build/', 'node_modules/', 'data/', 'eslint.config.js', 'test/start.js', 'test/compile.js'] },
  ...tseslint.configs.strictTypeChecked,
  {
    // One program for all files: the project service, made for editors, takes a quarter more of the processor.
    languageOptions: { parserOptions: { project: './tsconfig.json', tsconfigRootDir: import.meta.dirname } },
    linterOptions: { reportUnusedDisableDirectives: 'error' },
    rules: {
      '@typescript-eslint/no-explicit-any': 'error',
      '@typescript-eslint/no-floating-promises': 'error',
      '@typescript-eslint/no-misused-promises': ['error', { checksVoidReturn: { arguments: false } }],
      '@typescript-eslint/switch-exhaustiveness-check': ['error', { considerDefaultExhaustiveForUnions: true }],
      '@typescript-eslint/consistent-type-imports': 'error',
      // Numbers and booleans in messages are clear enough.
      '@typescript-eslint/restrict-template-expressions': ['error', { allowNumber: true, allowBoolean: true }],
      '@typescript-eslint/no-confusing-void-expression': 'off',
      '@typescript-eslint/no-unnecessary-condition': 'off',
      '@typescript-eslint/unified-signatures': 'off',
      '@typescript-eslint/no-unsafe-enum-assignment': 'off',
      // A tenth of the linter's time; private members keep classes apart for the compiler already.
      '@typescript-eslint/no-unsafe-class-instance-assignment': 'off',
      'max-lines': ['error', { max: 600, skipComments: false }],
      'max-lines-per-function': ['error', { max: 60, skipBlankLines: true, skipComments: true }],
      'max-params': 'off',
      '@typescript-eslint/max-params': ['error', { max: 4 }],
      'no-console': 'error',
    },
  },
  {
    files: ['src/cli/**', 'src/demo/**', 'src/server/admin/**', 'src/packages/**', 'test/**', 'bench/**'],
    rules: {
      'no-console': 'off',
      'max-lines-per-function': 'off',
      // Helpers are objects of closures that tests take apart.
      '@typescript-eslint/unbound-method': 'off',
      // A subtest that only holds others is async so that it ends when they do.
      '@typescript-eslint/require-await': 'off',
      '@typescript-eslint/no-unused-vars': ['error', { varsIgnorePattern: '^_', destructuredArrayIgnorePattern: '^_' }],
      // Subtests and assertions of the test library queue themselves.
      '@typescript-eslint/no-floating-promises': [
        'error',
        {
          allowForKnownSafeCalls: ['@tapjs/core', '@tapjs/test', '@tapjs/asserts', '@tapjs/after', 'tap'].map(
            (from) => ({
              from: 'package',
              name: ['test', 'teardown', 'rejects', 'resolves', 'before', 'after'],
              package: from,
            }),
          ),
        },
      ],
    },
  },
);
