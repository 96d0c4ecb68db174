-- FHIR R4: one row an observation of the patient that is final, amended or corrected, by LOINC, in the UCUM unit named here.
-- Tables, each with the column json, a resource or a Bundle a row: observation, patient.
@tables
WITH RECURSIVE
@systems,
@persons,
@resource name=result table=observation type=Observation,
@measured
SELECT
    measured.patient,
    measured.kind,
    measured.value,
    measured.year - try_cast(substr(persons.resource.birthDate, 1, 4) AS DOUBLE) AS age
FROM measured
JOIN persons ON persons.patient = measured.patient
WHERE measured.kind IS NOT NULL
