import type { Report } from './report.js';

export const pageOf = (report: Report): string => JSON.stringify(report);
