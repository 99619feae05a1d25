# Draws one curve of growth.csv: name, heading, measured, x_of, y_of, csv, svg
set terminal svg size 700,420 font "sans-serif,12" background "white"
set output svg
set datafile separator comma
set label 1 heading at graph 0, graph 1.14 left noenhanced font ",13"
set label 2 sprintf("%s; both axes are logarithmic", measured) at graph 0, graph 1.06 \
	left noenhanced font ",10" tc rgb "#555555"
set xlabel x_of noenhanced
set ylabel y_of noenhanced
set logscale xy
set format x "%.0f"
set format y "%g"
set grid xtics ytics lc rgb "#dddddd"
set key off
set tmargin 4
set offsets graph 0.05, graph 0.05, graph 0.2, graph 0.2
row = sprintf("<awk -F, '$1 == \"%s\"' %s", name, csv)
plot row using 5:7:9 with filledcurves lc rgb "#cfe2f3", \
	row using 5:8:7:9 with yerrorbars pt 7 ps 0.5 lc rgb "#0b5394", \
	row using 5:8 with lines lw 2 lc rgb "#0b5394"
