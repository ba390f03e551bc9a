/** What a person types when asked something that fits. Each answer is given once. */
export type Answers = readonly (readonly [question: RegExp, answer: string | (() => string | Promise<string>)])[];

/** Gives the answer to a question; undefined where none is left that fits. */
export function answering(answers: Answers = []): (question: string) => string | Promise<string> | undefined {
  const left = [...answers];
  return (question) => {
    const at = left.findIndex(([fits]) => fits.test(question));
    if (at === -1) return undefined;
    const [found] = left.splice(at, 1);
    return typeof found?.[1] === 'function' ? found[1]() : found?.[1];
  };
}
