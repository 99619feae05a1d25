-- What the try-out begins with: the extension, a role that may stand, an election.
CREATE EXTENSION leader_election;
CREATE ROLE app LOGIN PASSWORD 'app';
GRANT USAGE ON SCHEMA leader_election TO app;
GRANT EXECUTE ON ALL ROUTINES IN SCHEMA leader_election TO app;
SELECT leader_election.create_election('mailer', lease_duration => '5 s');
