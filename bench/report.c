/*-------------------------------------------------------------------------
 *
 * report.c
 *		Samples, curves, and the tables that they end up in.
 *
 * bench/run names the files in the environment: BENCH_TABLE (the table),
 * BENCH_CSV (the same rows, with more columns), BENCH_GROWTH (a line for each
 * curve) and BENCH_CURVES (their points, as CSV).
 *
 *-------------------------------------------------------------------------
 */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "client.h"

void
add(Sample *sample, double value)
{
	if (sample->n == MAX_VALUES)
		die("more than %d values in a sample", MAX_VALUES);
	sample->values[sample->n++] = value;
}

static int
compare(const void *a, const void *b)
{
	double		x = *(const double *) a;
	double		y = *(const double *) b;

	return (x > y) - (x < y);
}

/*
 * The values in ascending order.
 */
static Sample
sorted(const Sample *sample)
{
	Sample		copy = *sample;

	if (copy.n == 0)
		die("an empty sample");
	qsort(copy.values, copy.n, sizeof(double), compare);
	return copy;
}

double
median(const Sample *sample)
{
	Sample		s = sorted(sample);

	return (s.values[(s.n - 1) / 2] + s.values[s.n / 2]) / 2;
}

double
maximum(const Sample *sample)
{
	return sorted(sample).values[sample->n - 1];
}

double
mean(const Sample *sample)
{
	double		sum = 0;

	if (sample->n == 0)
		die("an empty sample");
	for (int i = 0; i < sample->n; i++)
		sum += sample->values[i];
	return sum / sample->n;
}

/*
 * A value that a share p of the sorted values does not exceed.
 */
static double
quantile(const Sample *sorted_values, double p)
{
	double		at = p * (sorted_values->n - 1);
	int			i = (int) at;
	int			next = i + 1 < sorted_values->n ? i + 1 : i;

	return sorted_values->values[i] +
		(at - i) * (sorted_values->values[next] - sorted_values->values[i]);
}

/*
 * bench/run shows what all benchmarks have written to a file, at the end.
 */
static FILE *
output(const char *variable, FILE **file)
{
	const char *name = getenv(variable);

	if (*file == NULL)
	{
		*file = name != NULL ? fopen(name, "a") : stdout;
		if (*file == NULL)
			die("cannot write %s", name);
		setvbuf(*file, NULL, _IOLBF, 0);
	}
	return *file;
}

static FILE *
table(void)
{
	static FILE *file = NULL;

	return output("BENCH_TABLE", &file);
}

/*
 * A field of CSV that may hold anything.
 */
static void
write_text(FILE *file, const char *value)
{
	fputc('"', file);
	for (; value != NULL && *value != '\0'; value++)
	{
		if (*value == '"')
			fputc('"', file);
		fputc(*value, file);
	}
	fputc('"', file);
}

static void
write_csv(const char *measure, const char *unit, int n, const double five[5],
		  Against against)
{
	static FILE *csv = NULL;
	FILE	   *file;

	if (getenv("BENCH_CSV") == NULL)
		return;
	file = output("BENCH_CSV", &csv);
	fprintf(file, "%s,", getenv("BENCH_NAME"));
	write_text(file, measure);
	fprintf(file, ",%s,%d", unit, n);
	for (int i = 0; i < 5; i++)
		fprintf(file, ",%.4g", five[i]);
	if (against.floor != NULL)
		fprintf(file, ",%.3f,", against.ratio);
	else
		fputs(",,", file);
	write_text(file, against.floor);
	fputc(',', file);
	write_text(file, against.target);
	fprintf(file, ",%s\n",
			against.target == NULL ? "" : against.met ? "yes" : "no");
}

static void
write_row(const char *measure, const char *unit, int n, const double five[5],
		  Against against)
{
	fprintf(table(), "%-50s %-5s %4d %9.2f %9.2f %9.2f %9.2f %6s  %s%s\n",
			measure, unit, n, five[1], five[2], five[3], five[4],
			against.floor == NULL ? "" : text("%.2f", against.ratio),
			against.target == NULL ? "" : against.target,
			against.target == NULL ? "" : against.met ? ": met" : ": MISSED");
	write_csv(measure, unit, n, (const double[5]) {
		five[1], five[2], five[3], five[0], five[4]
	}, against);
}

void
report(const char *measure, const char *unit, const Sample *sample,
	   Against against)
{
	Sample		s = sorted(sample);

	write_row(measure, unit, s.n, (const double[5]) {
		s.values[0], quantile(&s, 0.25), quantile(&s, 0.5), quantile(&s, 0.75),
		s.values[s.n - 1]
	}, against);
}

/*
 * The mean in the place of the median; in those of the quartiles, the bounds of
 * its 95 % confidence interval.
 */
void
report_mean(const char *measure, const char *unit, const Sample *sample,
			Against against)
{
	Sample		s = sorted(sample);
	double		m = mean(sample);
	double		squares = 0;
	double		margin;

	for (int i = 0; i < s.n; i++)
		squares += (s.values[i] - m) * (s.values[i] - m);
	margin = s.n > 1 ? 1.96 * sqrt(squares / (s.n - 1) / s.n) : 0;
	write_row(measure, unit, s.n, (const double[5]) {
		s.values[0], m - margin, m, m + margin, s.values[s.n - 1]
	}, against);
}

/*
 * A line of text in the table.
 */
void
report_note(const char *format,...)
{
	va_list		args;

	va_start(args, format);
	vfprintf(table(), format, args);
	va_end(args);
	fputc('\n', table());
}

/*
 * The exponent b of the curve y = a * x^b through the medians, by least squares
 * of the logarithms.
 */
double
exponent(const Growth *growth)
{
	double		sx = 0;
	double		sy = 0;
	double		sxx = 0;
	double		sxy = 0;
	int			n = growth->npoints;

	for (int i = 0; i < n; i++)
	{
		double		x = log(growth->sizes[i]);
		/* What is too small to be measured counts as a thousandth. */
		double		y = log(fmax(median(&growth->samples[i]), 1e-3));

		sx += x;
		sy += y;
		sxx += x * x;
		sxy += x * y;
	}
	return n < 2 ? 0 : (n * sxy - sx * sy) / (n * sxx - sx * sx);
}

/*
 * A point of a curve is the next value at this size, or at a new one.
 */
void
add_point(Growth *growth, double size, double value)
{
	int			i = 0;

	while (i < growth->npoints && growth->sizes[i] != size)
		i++;
	if (i == MAX_POINTS)
		die("more than %d points in a curve", MAX_POINTS);
	if (i == growth->npoints)
	{
		growth->sizes[i] = size;
		growth->npoints++;
	}
	add(&growth->samples[i], value);
}

/*
 * The ratio of two curves at their largest sizes.
 */
double
last_to_last(const Growth *growth, const Growth *floor)
{
	return median(&growth->samples[growth->npoints - 1]) /
		median(&floor->samples[floor->npoints - 1]);
}

/*
 * A row for each size in the table and in the CSV, one in the table of growth,
 * and the points that bench/run draws.
 */
void
report_growth(const Growth *growth, Against against)
{
	static FILE *curves = NULL;
	static FILE *summary = NULL;
	FILE	   *points;
	FILE	   *line = output("BENCH_GROWTH", &summary);

	fprintf(line, "%-46s %-5s", growth->title, growth->unit);
	for (int i = 0; i < growth->npoints; i++)
	{
		Sample		s = sorted(&growth->samples[i]);
		bool		last = i == growth->npoints - 1;

		report(text("%s: %.0f", growth->title, growth->sizes[i]), growth->unit,
			   &s, last ? against : NO_FLOOR);
		fprintf(line, "  %6.0f: %-9.3g", growth->sizes[i], median(&s));
		if (getenv("BENCH_CURVES") != NULL)
		{
			points = output("BENCH_CURVES", &curves);
			fprintf(points, "%s,\"%s\",%s,%s,%.0f,%d,%.4g,%.4g,%.4g\n",
					growth->name, growth->title, growth->unit, growth->of,
					growth->sizes[i], s.n, quantile(&s, 0.25),
					quantile(&s, 0.5), quantile(&s, 0.75));
		}
	}
	fprintf(line, "  exponent %.2f\n", exponent(growth));
}

const char *
text(const char *format,...)
{
	static char buffers[64][200];
	static int	next = 0;
	char	   *buffer = buffers[next++ % 64];
	va_list		args;

	va_start(args, format);
	vsnprintf(buffer, sizeof(buffers[0]), format, args);
	va_end(args);
	return buffer;
}
