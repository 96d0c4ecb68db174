-- OMOP CDM 5.4: one row a measurement, in the units named here; a measurement in another unit is left out:
--   hba1c: 3004410 in % (8554), hemoglobin A1c in blood
--   creatinine: 3016723 in mg/dL (8840), creatinine in serum or plasma
--   systolic: 3004249 in mmHg (8876), systolic blood pressure
--   bmi: 3038553 in kg/m2 (9531), body mass index
SELECT
    measurement.person_id,
    CASE measurement.measurement_concept_id
        WHEN 3004410 THEN 'hba1c'
        WHEN 3016723 THEN 'creatinine'
        WHEN 3004249 THEN 'systolic'
        WHEN 3038553 THEN 'bmi'
    END AS kind,
    measurement.value_as_number AS value,
    CAST(EXTRACT(YEAR FROM measurement.measurement_date) AS float8) - person.year_of_birth AS age
FROM measurement
JOIN person ON person.person_id = measurement.person_id
WHERE (measurement.measurement_concept_id = 3004410 AND measurement.unit_concept_id = 8554)
   OR (measurement.measurement_concept_id = 3016723 AND measurement.unit_concept_id = 8840)
   OR (measurement.measurement_concept_id = 3004249 AND measurement.unit_concept_id = 8876)
   OR (measurement.measurement_concept_id = 3038553 AND measurement.unit_concept_id = 9531)
