-- FHIR R4: one row an encounter that was neither cancelled nor entered in error, nor is only planned, nor is part of another of its kind.
-- Tables, each with the column json, a resource or a Bundle a row: encounter, patient.
@tables
WITH RECURSIVE
@systems,
@persons,
@resource name=stay table=encounter type=Encounter,
@visits
SELECT
    visits.patient,
    visits.kind,
    CASE
        WHEN visits.ends >= visits.begins
            THEN CAST(EXTRACT(EPOCH FROM visits.ends) AS DOUBLE) / 86400 - CAST(EXTRACT(EPOCH FROM visits.begins) AS DOUBLE) / 86400
    END AS days,
    visits.year - try_cast(substr(persons.resource.birthDate, 1, 4) AS DOUBLE) AS age
FROM visits
JOIN persons ON persons.patient = visits.patient
