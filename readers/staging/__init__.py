"""Remote datasets: a process per machine, the stager, downloads their files to a cache folder, in the order of use."""
