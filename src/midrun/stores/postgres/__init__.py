"""The store on Postgres: any number of processes, on any number of machines."""
