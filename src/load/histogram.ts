/**
 * A histogram of latencies in microseconds: buckets of equal relative width, as in HdrHistogram, so that percentiles of
 * many processes can be merged. A value is known to within 0.8 %.
 */

/** Bits of a value that are kept after its leading one: values below 2^8 are exact. */
const BITS = 7;
const EXACT = 2 ** (BITS + 1);
/** Buckets per doubling of the value. */
const PER_DOUBLING = 2 ** BITS;
/** The largest value, 2^36 us, is 19 hours. */
const VALUE_MAX = 2 ** 36 - 1;
const BUCKETS = EXACT + (36 - BITS - 1) * PER_DOUBLING;

/** Buckets and their counts, alternately: the form in which histograms are sent and merged. */
export type Buckets = readonly number[];

function bucketOf(value: number): number {
  if (value < EXACT) return value;
  const exponent = Math.floor(Math.log2(value)) - BITS;
  const part = Math.floor(value / 2 ** exponent);
  return EXACT + (exponent - 1) * PER_DOUBLING + (part - PER_DOUBLING);
}

/** The middle of a bucket. */
function valueOf(bucket: number): number {
  if (bucket < EXACT) return bucket;
  const exponent = Math.floor((bucket - EXACT) / PER_DOUBLING) + 1;
  const part = ((bucket - EXACT) % PER_DOUBLING) + PER_DOUBLING;
  return (part + 0.5) * 2 ** exponent;
}

/** The figures of a histogram, in milliseconds. */
export interface Latency {
  readonly count: number;
  readonly mean: number;
  readonly p50: number;
  readonly p99: number;
  readonly p999: number;
  readonly max: number;
}

/** Counts values of 0 to 2^36 us. */
export class Histogram {
  private readonly counts = new Map<number, number>();
  private sum = 0;
  private largest = 0;
  count = 0;

  /** The sum of other histograms, given by their `buckets`. */
  static of(...parts: readonly Buckets[]): Histogram {
    const all = new Histogram();
    for (const part of parts) all.merge(part);
    return all;
  }

  /** Counts a value in microseconds; a negative one, from clocks read out of order, counts as 0. */
  record(us: number): void {
    const value = Math.min(VALUE_MAX, Math.max(0, Math.round(us)));
    this.add(bucketOf(value), 1);
    this.sum += value;
    this.largest = Math.max(this.largest, value);
  }

  /** Adds the counts of another histogram. Ignores invalid buckets and counts: they may come from another machine. */
  merge(buckets: Buckets): void {
    for (let at = 0; at + 1 < buckets.length; at += 2) {
      const [bucket = -1, count = 0] = [buckets[at], buckets[at + 1]];
      if (!Number.isSafeInteger(bucket) || bucket < 0 || bucket >= BUCKETS) continue;
      if (!Number.isSafeInteger(count) || count < 1) continue;
      this.add(bucket, count);
      this.sum += valueOf(bucket) * count;
      this.largest = Math.max(this.largest, valueOf(bucket));
    }
  }

  get buckets(): Buckets {
    return this.sorted.flat();
  }

  private get sorted(): (readonly [bucket: number, count: number])[] {
    return [...this.counts].sort(([one], [other]) => one - other);
  }

  /** The value, in microseconds, that `share` (0 to 1) of all do not exceed; 0 if nothing was counted. */
  quantile(share: number): number {
    let left = Math.max(1, Math.ceil(this.count * share));
    for (const [bucket, count] of this.sorted) {
      left -= count;
      if (left <= 0) return Math.min(valueOf(bucket), this.largest);
    }
    return 0;
  }

  /** Its figures in milliseconds. */
  get latency(): Latency {
    const ms = (us: number): number => Math.round(us) / 1_000;
    return {
      count: this.count,
      mean: ms(this.count === 0 ? 0 : this.sum / this.count),
      p50: ms(this.quantile(0.5)),
      p99: ms(this.quantile(0.99)),
      p999: ms(this.quantile(0.999)),
      max: ms(this.largest),
    };
  }

  private add(bucket: number, count: number): void {
    this.counts.set(bucket, (this.counts.get(bucket) ?? 0) + count);
    this.count += count;
  }
}
